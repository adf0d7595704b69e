foreach(name collective_algorithms_test collective_checker_test collective_traffic_test)
  tandem_test(${name} OPTIMIZED SRCS ${CMAKE_SOURCE_DIR}/tests/unit/collectives/${name}.cc DEPS tandem::collective_proof LABELS unit)
endforeach()
tandem_test(tune_group_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/worker/tune_group_test.cc
            DEPS tandem::worker_core tandem::collective_links tandem::run_job Threads::Threads LABELS unit)
# Programs as a user starts them.
tandem_test(joined_bench_test SRCS ${CMAKE_SOURCE_DIR}/tests/integration/joined_bench_test.cc
            DEPS tandem::run_job LABELS integration bench TIMEOUT 300)
add_dependencies(joined_bench_test tandem)
if(TANDEM_TORCH)
  tandem_test(collective_job_test SRCS ${CMAKE_SOURCE_DIR}/tests/integration/collective_job_test.cc
              DEPS tandem::rdma tandem::small_job LABELS integration TIMEOUT 300)
  add_dependencies(collective_job_test tandem tandem-scheduler tandem-server tandem-worker)
endif()
