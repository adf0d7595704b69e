# LibTorch asks for "libblas.so.3", and Debian answers with whichever BLAS ranks first among its
# alternatives: with both OpenBLAS packages installed that is the pthread one, whose thread pool fights
# with LibTorch's OpenMP pool (three times slower with two threads). So that nobody has to change the
# machine, our programs look into the OpenMP build's folder first. DT_RPATH rather than DT_RUNPATH,
# because it has to count for the libraries of our libraries too.
include_guard(GLOBAL)
find_path(TANDEM_OPENBLAS_OPENMP libopenblas.so.0
  PATHS /usr/lib/${CMAKE_LIBRARY_ARCHITECTURE}/openblas-openmp
        /usr/lib/${CMAKE_SYSTEM_PROCESSOR}-linux-gnu/openblas-openmp
  NO_DEFAULT_PATH)
if(TANDEM_OPENBLAS_OPENMP)
  add_link_options(-Wl,--disable-new-dtags -Wl,-rpath,${TANDEM_OPENBLAS_OPENMP})
endif()
