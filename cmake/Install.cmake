# Defines where `cmake --install` puts files, and the Debian package that `cpack -G DEB` makes.
#
#   bin/                 tandem, tandem-scheduler, tandem-server, tandem-worker, tandem-simulator
#   lib/                 libtandem.so (capi/tandem.h), and the libraries behind tandem::client;
#                        libtandem_arrow.so, if pyarrow was there
#   lib/cmake/Tandem/    find_package(Tandem): tandem::client, tandem::capi
#   include/tandem/      their headers, with the names that they have in the tree
#   share/tandem/        python/ (the package), configs/, examples/, the script that draws figures
#   share/doc/tandem/    the pages, and examples/ again, for their links
#
# The programs find each other, the package and its library relative to their own location, so any
# prefix works.
include_guard(GLOBAL)
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(programs tandem tandem-scheduler tandem-server tandem-simulator)
if(TANDEM_TORCH)
  list(APPEND programs tandem-worker)
endif()
install(TARGETS ${programs} RUNTIME)
if(TARGET tandem_arrow)
  install(TARGETS tandem_arrow LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()

set_target_properties(tandem_capi PROPERTIES EXPORT_NAME capi)
install(TARGETS ${exported} tandem_capi EXPORT TandemTargets
  ARCHIVE LIBRARY FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tandem)
install(FILES capi/tandem.h capi/tandem_group.h capi/tandem_store.h policies/tandem_policy.h
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tandem/capi)
foreach(name bounds collectives job wire)
  install(FILES ${CMAKE_BINARY_DIR}/proto/${name}.pb.h
    DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tandem/proto)
endforeach()
set(config ${CMAKE_INSTALL_LIBDIR}/cmake/Tandem)
install(EXPORT TandemTargets NAMESPACE tandem:: DESTINATION ${config})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/TandemConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES cmake/TandemConfig.cmake ${CMAKE_BINARY_DIR}/TandemConfigVersion.cmake
  DESTINATION ${config})

set(share ${CMAKE_INSTALL_DATADIR}/tandem)
install(DIRECTORY python/tandem DESTINATION ${share}/python PATTERN __pycache__ EXCLUDE)
install(DIRECTORY configs DESTINATION ${share})
install(FILES tools/study/figures.py DESTINATION ${share})
install(FILES README.md CONTRIBUTING.md CHANGELOG.md LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs examples DESTINATION ${CMAKE_INSTALL_DOCDIR} PATTERN __pycache__ EXCLUDE)
install(DIRECTORY examples DESTINATION ${share} PATTERN __pycache__ EXCLUDE)
# The folder where Debian's python3 looks under /usr. Elsewhere PYTHONPATH must name
# share/tandem/python.
set(TANDEM_PYTHON_DIR "lib/python3/dist-packages" CACHE STRING
  "Folder under the prefix that gets a link to the Python package")
install(CODE "
  set(folder \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${TANDEM_PYTHON_DIR}\")
  file(RELATIVE_PATH package \"\${folder}\"
       \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${share}/python/tandem\")
  file(MAKE_DIRECTORY \"\${folder}\")
  file(CREATE_LINK \"\${package}\" \"\${folder}/tandem\" SYMBOLIC)")

# ---- the Debian package ----
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME tandem)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "training of recommendation models on parameter servers")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_MAINTAINER "The authors of Tandem <tandem@localhost>")
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
# Arrow's libraries belong to no package of Debian; libtandem_arrow.so finds them when it is opened.
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${TANDEM_PYARROW_FOLDER})
# LibTorch asks for libblas.so.3, and this build of it does not compete with LibTorch's threads.
set(CPACK_DEBIAN_PACKAGE_DEPENDS "libopenblas0-openmp, python3, python3-numpy")
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "python3-torch, python3-matplotlib, libibverbs1, librdmacm1, ibverbs-providers")
# For programs that link tandem::client.
string(JOIN ", " CPACK_DEBIAN_PACKAGE_SUGGESTS
  libabsl-dev libprotobuf-dev libsodium-dev libxxhash-dev libzmq3-dev libzstd-dev zlib1g-dev)
include(CPack)
