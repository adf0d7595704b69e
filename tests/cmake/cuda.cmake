if(TANDEM_CUDA)
  tandem_library(gpu_checks
    SRCS ${CMAKE_SOURCE_DIR}/tests/cuda/gpu_checks.cc ${CMAKE_SOURCE_DIR}/tests/cuda/gpu_bench.cc
         ${CMAKE_SOURCE_DIR}/tests/cuda/gpu_data.cc ${CMAKE_SOURCE_DIR}/tests/cuda/processes.cc
         ${CMAKE_SOURCE_DIR}/tests/cuda/thread_peers.cc ${CMAKE_SOURCE_DIR}/tests/cuda/nccl_allreduce.cc
    HDRS ${CMAKE_SOURCE_DIR}/tests/cuda/device_memory.h ${CMAKE_SOURCE_DIR}/tests/cuda/gpu_bench.h
         ${CMAKE_SOURCE_DIR}/tests/cuda/gpu_checks.h ${CMAKE_SOURCE_DIR}/tests/cuda/gpu_data.h
         ${CMAKE_SOURCE_DIR}/tests/cuda/processes.h ${CMAKE_SOURCE_DIR}/tests/cuda/thread_peers.h
         ${CMAKE_SOURCE_DIR}/tests/cuda/nccl_allreduce.h
    DEPS tandem::collectives_cuda Threads::Threads)
  # Its files have names of their own that are the same in several of them.
  set_target_properties(tandem_gpu_checks PROPERTIES UNITY_BUILD OFF)
  find_path(TANDEM_NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  find_library(TANDEM_NCCL_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR} ${CUDAToolkit_LIBRARY_ROOT}/lib)
  if(TANDEM_NCCL_INCLUDE AND TANDEM_NCCL_LIBRARY)
    target_compile_definitions(tandem_gpu_checks PRIVATE TANDEM_HAVE_NCCL)
    target_include_directories(tandem_gpu_checks SYSTEM PRIVATE ${TANDEM_NCCL_INCLUDE})
    target_link_libraries(tandem_gpu_checks PUBLIC ${TANDEM_NCCL_LIBRARY})
  endif()
  tandem_binary(gpu_check SRCS ${CMAKE_SOURCE_DIR}/tests/cuda/gpu_main.cc DEPS tandem::gpu_checks)
  tandem_test(device_test SRCS ${CMAKE_SOURCE_DIR}/tests/cuda/device_test.cc
              DEPS tandem::gpu_checks LABELS gpu TIMEOUT 900)
endif()
