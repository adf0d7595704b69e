# Finds the CUDA toolkit. Afterwards TANDEM_CUDA says whether there is one. A rule of our own calls
# nvcc for the few .cu files. So all other code stays with the C++ compiler and its warnings, and a
# build without the toolkit differs only by the files that it leaves out.
#
# tandem_cuda_object(OUT a.cu HEADERS ...) compiles for TANDEM_CUDA_ARCH and sets OUT to the object
# file.
include_guard(GLOBAL)
# AUTO: if there is a GPU, or if tests are built. Otherwise nothing would run the result, and nvcc
# is slow.
set(TANDEM_WITH_CUDA AUTO CACHE STRING
  "Build what runs on CUDA devices, if the toolkit is found: AUTO, ON or OFF")
set(TANDEM_CUDA OFF)
set(with_cuda ${TANDEM_WITH_CUDA})
if(with_cuda STREQUAL "AUTO")
  set(with_cuda OFF)
  if(TANDEM_TESTS OR EXISTS /dev/nvidiactl OR EXISTS /dev/dxg)
    set(with_cuda ON)
  endif()
endif()
if(with_cuda)
  find_package(CUDAToolkit 12 QUIET)
  if(CUDAToolkit_FOUND AND CUDAToolkit_NVCC_EXECUTABLE)
    set(TANDEM_CUDA ON)
  endif()
endif()
message(STATUS "CUDA: ${TANDEM_CUDA} ${CUDAToolkit_VERSION}")

# Code of one capability also runs on later ones of the same major number: 7.x is V100 and T4, 8.x
# is A100, L4 and RTX 4090, 9.x is H100. The driver compiles PTX for later devices. nvcc 13 has no
# 7.0. tests/bench/gpu.sh has the same list.
set(TANDEM_CUDA_ARCH "" CACHE STRING
  "Compute capabilities that CUDA code is built for, such as 80;90; empty: 7.0 (or 7.5) and later")
set(TANDEM_GENCODE)
if(TANDEM_CUDA)
  foreach(arch ${TANDEM_CUDA_ARCH})
    list(APPEND TANDEM_GENCODE -gencode arch=compute_${arch},code=[sm_${arch},compute_${arch}])
  endforeach()
  if(NOT TANDEM_GENCODE)
    execute_process(COMMAND ${CUDAToolkit_NVCC_EXECUTABLE} --list-gpu-arch OUTPUT_VARIABLE known)
    if(known MATCHES "compute_(7[05])")
      list(APPEND TANDEM_GENCODE -gencode arch=compute_${CMAKE_MATCH_1},code=sm_${CMAKE_MATCH_1})
    endif()
    list(APPEND TANDEM_GENCODE -gencode arch=compute_80,code=[sm_80,sm_90,compute_80])
  endif()
endif()

function(tandem_cuda_object out source)
  cmake_parse_arguments(ARG "" "" "HEADERS" ${ARGN})
  set(object ${CMAKE_CURRENT_BINARY_DIR}/${source}.o)
  set(headers ${ARG_HEADERS})
  add_custom_command(
    OUTPUT ${object}
    COMMAND ${CUDAToolkit_NVCC_EXECUTABLE} -std=c++20 -O3 -fmad=false --Werror all-warnings
            ${TANDEM_GENCODE}
            -Xcompiler=-fPIC,-Wall,-Wextra,-Wno-unknown-pragmas,-ffp-contract=off
            -I${CMAKE_SOURCE_DIR} -c ${CMAKE_CURRENT_SOURCE_DIR}/${source} -o ${object}
    DEPENDS ${source} ${headers}
    COMMENT "nvcc ${source}"
    VERBATIM)
  set_source_files_properties(${object} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
  set(${out} ${object} PARENT_SCOPE)
endfunction()
