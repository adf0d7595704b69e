# Push and pull: the client of programs, and its benchmark.
tandem_test(pushpull_bench_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/pushpull_bench_test.cc
            DEPS tandem::bench LABELS unit bench)
tandem_test(client_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/client_test.cc
            DEPS tandem::client tandem::server tandem::transport LABELS unit)

# Collectives: sweeps of each, with ranks in processes of their own.
tandem_test(collective_bench_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/collective_bench_test.cc
            DEPS tandem::bench LABELS unit bench)
tandem_test(collective_chooser_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/collective_chooser_test.cc
            DEPS tandem::bench LABELS unit)
tandem_test(collective_dump_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/collective_dump_test.cc
            DEPS tandem::collective_trace LABELS unit)

# The command itself, on sizes that measure nothing.
foreach(what store pushpull allreduce allgather reduce_scatter broadcast reduce alltoall gather scatter sendrecv
        barrier)
  add_test(NAME bench_${what}_tiny COMMAND tandem bench ${what} --tiny)
  set_tests_properties(bench_${what}_tiny PROPERTIES LABELS bench TIMEOUT 120)
endforeach()
