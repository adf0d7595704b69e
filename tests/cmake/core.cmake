tandem_test(policy_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/policies/policy_test.cc
  DEPS tandem::policies LABELS unit)
tandem_test(range_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/server/range_test.cc
  DEPS tandem::server LABELS unit)
tandem_test(shard_core_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/server/shard_core_test.cc
  DEPS tandem::server LABELS unit)
tandem_test(waiting_frames_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/server/waiting_frames_test.cc
  DEPS tandem::server LABELS unit)
tandem_test(row_cache_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/server/row_cache_test.cc
  DEPS tandem::client LABELS unit)
tandem_test(subscriptions_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/server/subscriptions_test.cc
  DEPS tandem::server LABELS unit)
tandem_test(checkpoint_directory_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/server/checkpoint_directory_test.cc
  DEPS tandem::checkpoint LABELS unit)
tandem_test(segment_file_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/server/segment_file_test.cc
  DEPS tandem::checkpoint LABELS unit)
tandem_test(order_file_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/server/order_file_test.cc
  DEPS tandem::server LABELS unit)
tandem_test(record_cut_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/server/record_cut_test.cc
  DEPS tandem::server LABELS unit)
tandem_test(inspect_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/server/inspect_test.cc
  DEPS tandem::checkpoint LABELS unit)
tandem_test(checkpoint_check_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/server/checkpoint_check_test.cc
  DEPS tandem::checkpoint LABELS unit)
tandem_test(server_core_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/server/server_core_test.cc
  DEPS tandem::server_core LABELS unit)
tandem_test(range_copy_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/server/range_copy_test.cc
  DEPS tandem::server LABELS unit)
tandem_test(shard_checkpoint_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/server/shard_checkpoint_test.cc
  DEPS tandem::checkpoint LABELS unit)
foreach(test client/client_core_test worker/evaluation_share_test worker/trainer_core_test)
  get_filename_component(name ${test} NAME)
  tandem_test(${name} SRCS ${CMAKE_SOURCE_DIR}/tests/unit/${test}.cc
    DEPS tandem::worker_core LABELS unit)
endforeach()
# Each machine of the trainer alone.
tandem_test(trainer_machines_test
  SRCS ${CMAKE_SOURCE_DIR}/tests/unit/worker/allreduce_gradients_test.cc
       ${CMAKE_SOURCE_DIR}/tests/unit/worker/local_steps_test.cc
       ${CMAKE_SOURCE_DIR}/tests/unit/worker/epoch_end_test.cc
       ${CMAKE_SOURCE_DIR}/tests/unit/worker/early_stopping_test.cc
       ${CMAKE_SOURCE_DIR}/tests/unit/worker/loss_history_test.cc
       ${CMAKE_SOURCE_DIR}/tests/unit/worker/evaluation_round_test.cc
       ${CMAKE_SOURCE_DIR}/tests/unit/worker/quorum_leader_test.cc
       ${CMAKE_SOURCE_DIR}/tests/unit/worker/resume_position_test.cc
       ${CMAKE_SOURCE_DIR}/tests/unit/worker/checkpoint_writer_test.cc
       ${CMAKE_SOURCE_DIR}/tests/unit/worker/slow_down_test.cc
       ${CMAKE_SOURCE_DIR}/tests/unit/worker/step_pipeline_test.cc
       ${CMAKE_SOURCE_DIR}/tests/unit/worker/worker_barriers_test.cc
       ${CMAKE_SOURCE_DIR}/tests/unit/worker/deal_devices_test.cc
       ${CMAKE_SOURCE_DIR}/tests/unit/worker/trial_sum_test.cc
  DEPS tandem::worker_core LABELS unit)
# A plain loop to the bit: no fused multiply-add.
set_source_files_properties(${CMAKE_SOURCE_DIR}/tests/unit/worker/local_steps_test.cc PROPERTIES
  COMPILE_OPTIONS "-ffp-contract=off" SKIP_PRECOMPILE_HEADERS ON)
tandem_test(trainer_alloc_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/worker/trainer_alloc_test.cc
  DEPS tandem::worker_core tandem::server LABELS unit)
tandem_test(push_pull_alloc_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/client/push_pull_alloc_test.cc
  DEPS tandem::worker_core tandem::server LABELS unit)
tandem_test(zmq_goodbye_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/transport/zmq_goodbye_test.cc
  DEPS tandem::transport LABELS unit)
tandem_test(wall_clock_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/client/wall_clock_test.cc
  DEPS tandem::client tandem::server tandem::node tandem::collective_rendezvous LABELS unit)
tandem_test(session_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/client/session_test.cc
  DEPS tandem::client tandem::scheduler_shell tandem::server_shell LABELS unit)
# The functions of the C interface, without the shared library around them.
tandem_test(store_table_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/client/store_table_test.cc
    ${CMAKE_SOURCE_DIR}/capi/returns.cc ${CMAKE_SOURCE_DIR}/capi/store.cc
  DEPS tandem::client tandem::scheduler_shell tandem::server_shell LABELS unit)
tandem_test(node_link_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/node/node_link_test.cc
  DEPS tandem::node LABELS unit)
tandem_test(job_token_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/node/job_token_test.cc
  DEPS tandem::node LABELS unit)
tandem_test(peer_map_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/transport/peer_map_test.cc
  DEPS tandem::transport LABELS unit)
