# The CUDA toolkit, if there is one: TANDEM_CUDA is then true after this file is included. nvcc is
# called by a rule of our own for the few .cu files, so that everything else stays with the C++
# compiler and its warnings, and a build without the toolkit differs only by what is left out.
#
# tandem_cuda_object(OUT a.cu HEADERS ...): compiles for Hopper, with PTX for later devices, and sets OUT to
# the object file.
include_guard(GLOBAL)
# AUTO: where there is a GPU, or tests are built. Elsewhere nothing would run the result, and nvcc is slow.
set(TANDEM_WITH_CUDA AUTO CACHE STRING "Build what runs on CUDA devices, if the toolkit is found: AUTO, ON or OFF")
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

set(TANDEM_CUDA_ARCH "90" CACHE STRING "Compute capability that CUDA code is built for")

function(tandem_cuda_object out source)
  cmake_parse_arguments(ARG "" "" "HEADERS" ${ARGN})
  set(object ${CMAKE_CURRENT_BINARY_DIR}/${source}.o)
  set(headers ${ARG_HEADERS})
  add_custom_command(
    OUTPUT ${object}
    COMMAND ${CUDAToolkit_NVCC_EXECUTABLE} -std=c++20 -O3 -fmad=false --Werror all-warnings
            -gencode arch=compute_${TANDEM_CUDA_ARCH},code=[sm_${TANDEM_CUDA_ARCH},compute_${TANDEM_CUDA_ARCH}]
            -Xcompiler=-fPIC,-Wall,-Wextra,-Wno-unknown-pragmas,-ffp-contract=off
            -I${CMAKE_SOURCE_DIR} -c ${CMAKE_CURRENT_SOURCE_DIR}/${source} -o ${object}
    DEPENDS ${source} ${headers}
    COMMENT "nvcc ${source}"
    VERBATIM)
  set_source_files_properties(${object} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
  set(${out} ${object} PARENT_SCOPE)
endfunction()
