# LibTorch asks for "libblas.so.3". Debian provides the BLAS that ranks first among its
# alternatives. With both OpenBLAS packages installed that is the pthread build, whose thread pool
# competes with LibTorch's OpenMP pool (three times slower with two threads). So that nobody has to
# change the machine, our programs search the folder of the OpenMP build first. They use DT_RPATH
# and not DT_RUNPATH, because the path must also hold for libraries of our libraries.
include_guard(GLOBAL)
find_path(TANDEM_OPENBLAS_OPENMP libopenblas.so.0
  PATHS /usr/lib/${CMAKE_LIBRARY_ARCHITECTURE}/openblas-openmp
        /usr/lib/${CMAKE_SYSTEM_PROCESSOR}-linux-gnu/openblas-openmp
  NO_DEFAULT_PATH)
if(TANDEM_OPENBLAS_OPENMP)
  add_link_options(-Wl,--disable-new-dtags -Wl,-rpath,${TANDEM_OPENBLAS_OPENMP})
endif()
