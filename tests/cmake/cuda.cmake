if(TANDEM_CUDA)
  tandem_library(gpu_checks
    SRCS ${CMAKE_SOURCE_DIR}/tests/cuda/gpu_checks.cc ${CMAKE_SOURCE_DIR}/tests/cuda/gpu_bench.cc
         ${CMAKE_SOURCE_DIR}/tests/cuda/gpu_data.cc ${CMAKE_SOURCE_DIR}/tests/cuda/processes.cc
         ${CMAKE_SOURCE_DIR}/tests/cuda/thread_peers.cc
    HDRS ${CMAKE_SOURCE_DIR}/tests/cuda/device_memory.h ${CMAKE_SOURCE_DIR}/tests/cuda/gpu_bench.h
         ${CMAKE_SOURCE_DIR}/tests/cuda/gpu_checks.h ${CMAKE_SOURCE_DIR}/tests/cuda/gpu_data.h
         ${CMAKE_SOURCE_DIR}/tests/cuda/processes.h ${CMAKE_SOURCE_DIR}/tests/cuda/thread_peers.h
    DEPS tandem::collectives_cuda Threads::Threads)
  tandem_binary(gpu_check SRCS ${CMAKE_SOURCE_DIR}/tests/cuda/gpu_main.cc DEPS tandem::gpu_checks)
  tandem_test(device_test SRCS ${CMAKE_SOURCE_DIR}/tests/cuda/device_test.cc
              DEPS tandem::gpu_checks LABELS gpu TIMEOUT 900)
endif()
