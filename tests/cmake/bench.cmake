# Push and pull: the client of programs, and its benchmark.
tandem_library(pushpull_bench
  SRCS ${CMAKE_SOURCE_DIR}/tests/bench/machine.cc ${CMAKE_SOURCE_DIR}/tests/bench/pushpull_bench.cc
  HDRS ${CMAKE_SOURCE_DIR}/tests/bench/endpoints.h ${CMAKE_SOURCE_DIR}/tests/bench/lone_shard.h
       ${CMAKE_SOURCE_DIR}/tests/bench/machine.h ${CMAKE_SOURCE_DIR}/tests/bench/pushpull_bench.h
  DEPS tandem::base tandem::job tandem::transport tandem::server tandem::client tandem::optim
       absl::status absl::strings absl::str_format absl::time PkgConfig::xxhash PkgConfig::zmq
       Threads::Threads)
tandem_test(pushpull_bench_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/pushpull_bench_test.cc
            DEPS tandem::pushpull_bench LABELS unit bench)
tandem_test(client_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/client_test.cc
            DEPS tandem::client tandem::server tandem::transport LABELS unit)

# Collectives: sweeps of each, with ranks in processes of their own.
tandem_library(collective_bench
  SRCS ${CMAKE_SOURCE_DIR}/tests/bench/chooser_bench.cc ${CMAKE_SOURCE_DIR}/tests/bench/collective_bench.cc
       ${CMAKE_SOURCE_DIR}/tests/bench/collective_case.cc ${CMAKE_SOURCE_DIR}/tests/bench/exact_pattern.cc
       ${CMAKE_SOURCE_DIR}/tests/bench/joined_bench.cc
       ${CMAKE_SOURCE_DIR}/tests/bench/rank_processes.cc
  HDRS ${CMAKE_SOURCE_DIR}/tests/bench/chooser_bench.h ${CMAKE_SOURCE_DIR}/tests/bench/collective_bench.h
       ${CMAKE_SOURCE_DIR}/tests/bench/collective_case.h ${CMAKE_SOURCE_DIR}/tests/bench/exact_pattern.h
       ${CMAKE_SOURCE_DIR}/tests/bench/joined_bench.h ${CMAKE_SOURCE_DIR}/tests/bench/rank_processes.h
       ${CMAKE_SOURCE_DIR}/tests/unit/collective_world.h
  DEPS tandem::base tandem::collective_proof tandem::collective_chooser tandem::collective_group tandem::collective_links
       tandem::collective_rendezvous tandem::collective_trace tandem::pushpull_bench
       absl::status absl::strings absl::str_format absl::time Threads::Threads)
tandem_test(collective_bench_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/collective_bench_test.cc
            DEPS tandem::collective_bench LABELS unit bench)

# All benchmarks behind one command, `tandem bench`.
tandem_library(bench_command
  SRCS ${CMAKE_SOURCE_DIR}/cli/bench_command.cc
  HDRS ${CMAKE_SOURCE_DIR}/cli/bench_command.h
  DEPS tandem::cli tandem::store_bench tandem::collective_bench tandem::pushpull_bench absl::strings)
target_link_libraries(tandem PRIVATE tandem::bench_command)
target_compile_definitions(tandem PRIVATE TANDEM_BENCH)
foreach(what store pushpull allreduce allgather reduce_scatter broadcast reduce alltoall gather scatter sendrecv
        barrier)
  add_test(NAME bench_${what}_tiny COMMAND tandem bench ${what} --tiny)
  set_tests_properties(bench_${what}_tiny PROPERTIES LABELS bench TIMEOUT 120)
endforeach()

tandem_test(collective_chooser_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/collective_chooser_test.cc
            DEPS tandem::collective_bench LABELS unit)
tandem_test(collective_dump_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/collective_dump_test.cc
            DEPS tandem::collective_trace LABELS unit)

# Peers to compare with, built by tests/bench/collectives_vs_peers.sh where Open MPI and Gloo are
# installed: mpi_allreduce.cc gloo_allreduce.cc
