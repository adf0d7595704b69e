# Push and pull: the client of programs, and its benchmark.
tandem_test(pushpull_bench_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/tools/pushpull_bench_test.cc
            DEPS tandem::bench LABELS unit bench)
tandem_test(client_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/client/client_test.cc
            DEPS tandem::client tandem::server tandem::transport LABELS unit)

# Collectives: sweeps of each, with ranks in processes of their own.
tandem_test(collective_bench_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/tools/collective_bench_test.cc
            DEPS tandem::bench LABELS unit bench)
tandem_test(collective_chooser_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/collectives/collective_chooser_test.cc
            DEPS tandem::collective_chooser tandem::collective_group tandem::collective_links LABELS unit)
tandem_test(collective_dump_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/collectives/collective_dump_test.cc
            DEPS tandem::collective_trace LABELS unit)

# The command itself, on sizes that measure nothing.
foreach(what store pushpull allreduce allgather reduce_scatter broadcast reduce alltoall gather scatter sendrecv
        barrier)
  add_test(NAME bench_${what}_tiny COMMAND tandem bench ${what} --tiny)
  set_tests_properties(bench_${what}_tiny PROPERTIES LABELS bench TIMEOUT 120)
endforeach()
add_test(NAME bench_store_stream_tiny COMMAND tandem bench store --tiny --stream 100000)
set_tests_properties(bench_store_stream_tiny PROPERTIES LABELS bench TIMEOUT 120)
add_test(NAME bench_read_tiny COMMAND tandem bench read --tiny ${CMAKE_SOURCE_DIR}/configs/delimited.textproto
         --set cluster.workers=1 WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
set_tests_properties(bench_read_tiny PROPERTIES LABELS bench TIMEOUT 120)

# The scripts that compare, on sizes that measure nothing, so that they cannot rot. What needs root, a
# peer or CUDA is skipped without it (exit status 77). collectives_vs_peers.sh builds mpi_allreduce.cc and
# gloo_allreduce.cc where Open MPI and Gloo are installed.
function(bench_script script)  # bench_script(SCRIPT ARGUMENT...)
  add_test(NAME ${script}_tiny COMMAND ${CMAKE_SOURCE_DIR}/tests/bench/${script}.sh ${ARGN}
           WORKING_DIRECTORY ${CMAKE_BINARY_DIR})
  set_tests_properties(${script}_tiny PROPERTIES LABELS bench TIMEOUT 600 SKIP_RETURN_CODE 77)
endfunction()
bench_script(collectives_vs_peers --tiny --build ${CMAKE_BINARY_DIR})
bench_script(gpu --tiny)
bench_script(pushpull_vs_torch_rpc --tiny --build ${CMAKE_BINARY_DIR})
bench_script(regret --tiny --build ${CMAKE_BINARY_DIR})
if(TANDEM_TORCH)
  bench_script(collective_matrix ${CMAKE_SOURCE_DIR}/configs/delimited.textproto --build ${CMAKE_BINARY_DIR}
               --only "^(ring|buckets|codec_power_sgd|sharded_optimizer)$")
  bench_script(dlrm_vs_torch --tiny --build ${CMAKE_BINARY_DIR})
  bench_script(overlap --tiny --build ${CMAKE_BINARY_DIR})
  add_test(NAME checkpoint_cost_tiny
           COMMAND python3 ${CMAKE_SOURCE_DIR}/tests/bench/checkpoint_cost.py --tiny --build ${CMAKE_BINARY_DIR}
           WORKING_DIRECTORY ${CMAKE_BINARY_DIR})
  set_tests_properties(checkpoint_cost_tiny PROPERTIES LABELS bench TIMEOUT 600)
  # Where Debian's python3 has PyTorch; the script says so and ends with 77 where it has not.
  add_test(NAME python_speed_tiny
           COMMAND /usr/bin/python3 ${CMAKE_SOURCE_DIR}/tests/bench/python_speed.py --tiny --build ${CMAKE_BINARY_DIR}
           WORKING_DIRECTORY ${CMAKE_BINARY_DIR})
  set_tests_properties(python_speed_tiny PROPERTIES LABELS bench TIMEOUT 600 SKIP_RETURN_CODE 77)
  add_test(NAME read_speed_tiny
           COMMAND ${CMAKE_SOURCE_DIR}/tests/python/interpreter ${CMAKE_SOURCE_DIR}/tests/bench/read_speed.py
                   --tiny --build ${CMAKE_BINARY_DIR})
  set_tests_properties(read_speed_tiny PROPERTIES LABELS bench TIMEOUT 300 SKIP_RETURN_CODE 77)
  # Peers of today, in an environment of their own: TANDEM_TEST_PYTHON=$(tests/python/torch_environment.sh peers).
  foreach(script dlrm ddp killed trees)
    add_test(NAME peers_${script}_tiny
             COMMAND ${CMAKE_SOURCE_DIR}/tests/python/interpreter ${CMAKE_SOURCE_DIR}/tests/bench/peers/${script}.py
                     --tiny --build ${CMAKE_BINARY_DIR})
    set_tests_properties(peers_${script}_tiny PROPERTIES LABELS bench TIMEOUT 900 SKIP_RETURN_CODE 77)
  endforeach()
endif()
