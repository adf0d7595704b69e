# For programs outside this tree that link tandem::client from a build folder (tests/outside):
#
#   find_package(Tandem REQUIRED)   with -DTandem_DIR=BUILD
include(CMakeFindDependencyMacro)
find_dependency(Threads)
find_dependency(Protobuf)
find_dependency(absl)
find_dependency(ZLIB)
find_dependency(PkgConfig)
pkg_check_modules(zmq REQUIRED IMPORTED_TARGET libzmq)
pkg_check_modules(sodium REQUIRED IMPORTED_TARGET libsodium)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(zstd REQUIRED IMPORTED_TARGET libzstd)
include(${CMAKE_CURRENT_LIST_DIR}/TandemTargets.cmake)
