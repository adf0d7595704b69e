tandem_test(policy_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/policy_test.cc
  DEPS tandem::policies LABELS unit)
tandem_test(range_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/range_test.cc
  DEPS tandem::server LABELS unit)
tandem_test(shard_core_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/shard_core_test.cc
  DEPS tandem::server LABELS unit)
tandem_test(row_cache_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/row_cache_test.cc
  DEPS tandem::client LABELS unit)
tandem_test(subscriptions_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/subscriptions_test.cc
  DEPS tandem::server LABELS unit)
tandem_test(checkpoint_directory_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/checkpoint_directory_test.cc
  DEPS tandem::checkpoint LABELS unit)
tandem_test(update_order_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/update_order_test.cc
  DEPS tandem::server LABELS unit)
tandem_test(inspect_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/inspect_test.cc
  DEPS tandem::checkpoint LABELS unit)
tandem_test(checkpoint_check_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/checkpoint_check_test.cc
  DEPS tandem::checkpoint LABELS unit)
tandem_test(server_core_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/server_core_test.cc
  DEPS tandem::server_core tandem::checkpoint LABELS unit)
foreach(name client_core_test evaluation_share_test trainer_core_test)
  tandem_test(${name} SRCS ${CMAKE_SOURCE_DIR}/tests/unit/${name}.cc
    DEPS tandem::worker_core LABELS unit)
endforeach()
# Each machine of the trainer alone.
tandem_test(trainer_machines_test
  SRCS ${CMAKE_SOURCE_DIR}/tests/unit/allreduce_gradients_test.cc
       ${CMAKE_SOURCE_DIR}/tests/unit/local_steps_test.cc
       ${CMAKE_SOURCE_DIR}/tests/unit/epoch_end_test.cc
       ${CMAKE_SOURCE_DIR}/tests/unit/early_stopping_test.cc
       ${CMAKE_SOURCE_DIR}/tests/unit/loss_history_test.cc
       ${CMAKE_SOURCE_DIR}/tests/unit/evaluation_round_test.cc
       ${CMAKE_SOURCE_DIR}/tests/unit/quorum_leader_test.cc
       ${CMAKE_SOURCE_DIR}/tests/unit/resume_position_test.cc
       ${CMAKE_SOURCE_DIR}/tests/unit/checkpoint_writer_test.cc
       ${CMAKE_SOURCE_DIR}/tests/unit/slow_down_test.cc
       ${CMAKE_SOURCE_DIR}/tests/unit/step_pipeline_test.cc
       ${CMAKE_SOURCE_DIR}/tests/unit/worker_barriers_test.cc
  DEPS tandem::worker_core LABELS unit)
# A plain loop to the bit: no fused multiply-add.
set_source_files_properties(${CMAKE_SOURCE_DIR}/tests/unit/local_steps_test.cc PROPERTIES
  COMPILE_OPTIONS "-ffp-contract=off" SKIP_PRECOMPILE_HEADERS ON)
tandem_test(trainer_alloc_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/trainer_alloc_test.cc
  DEPS tandem::worker_core tandem::server LABELS unit)
tandem_test(push_pull_alloc_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/push_pull_alloc_test.cc
  DEPS tandem::worker_core tandem::server LABELS unit)
tandem_test(zmq_goodbye_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/zmq_goodbye_test.cc
  DEPS tandem::transport LABELS unit)
tandem_test(wall_clock_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/wall_clock_test.cc
  DEPS tandem::client tandem::server tandem::node tandem::collective_rendezvous LABELS unit)
tandem_test(session_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/session_test.cc
  DEPS tandem::client tandem::scheduler_shell tandem::server_shell LABELS unit)
# The functions of the C interface, without the shared library around them.
tandem_test(store_table_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/store_table_test.cc
    ${CMAKE_SOURCE_DIR}/capi/returns.cc ${CMAKE_SOURCE_DIR}/capi/store.cc
  DEPS tandem::client tandem::scheduler_shell tandem::server_shell LABELS unit)
tandem_test(node_link_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/node_link_test.cc
  DEPS tandem::node LABELS unit)
tandem_test(peer_map_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/peer_map_test.cc
  DEPS tandem::transport LABELS unit)
