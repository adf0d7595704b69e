foreach(name collective_schedule_test collective_engine_test collective_alloc_test)
  tandem_test(${name} SRCS ${CMAKE_SOURCE_DIR}/tests/unit/${name}.cc DEPS tandem::collectives_legacy LABELS unit)
endforeach()

tandem_library(allreduce_bench
  SRCS ${CMAKE_SOURCE_DIR}/tests/bench/allreduce_bench.cc
  HDRS ${CMAKE_SOURCE_DIR}/tests/bench/allreduce_bench.h
  DEPS tandem::collectives_legacy tandem::transport absl::str_format Threads::Threads)
tandem_test(allreduce_bench_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/allreduce_bench_test.cc
            DEPS tandem::allreduce_bench LABELS unit bench)

tandem_test(collective_reduce_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/collective_reduce_test.cc
            DEPS tandem::collective_reduce tandem::optim LABELS unit)
