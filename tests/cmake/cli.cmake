# The command line as a user meets it. These start whole jobs, and so need LibTorch.
if(TANDEM_TORCH)
  set(sampled_agent_test 4)
  set(sampled_kill_test 4)
  set(sampled_compare_test 5)
  set(sampled_netns_test 3)
  set(sampled_virtual_hosts_test 3)
  foreach(name agent_test compare_test known_answers_test output_folder_test start_test refusal_test kill_test netns_test pin_test terminal_test virtual_hosts_test)
    tandem_test(${name} SRCS ${CMAKE_SOURCE_DIR}/tests/integration/${name}.cc
                DEPS tandem::run_job tandem::small_job
                LABELS integration TIMEOUT 600 SAMPLED ${sampled_${name}})
    set_tests_properties(${name} PROPERTIES COST 100)
    add_dependencies(${name} tandem tandem-scheduler tandem-server tandem-worker)
  endforeach()
  target_link_libraries(terminal_test PRIVATE util)  # forkpty
  target_link_libraries(kill_test PRIVATE tandem::rdma)
  target_link_libraries(agent_test PRIVATE tandem::cli)
  target_link_libraries(output_folder_test PRIVATE tandem::cli)
  target_link_libraries(start_test PRIVATE tandem::cli)
  tandem_test(doctor_run_test SRCS ${CMAKE_SOURCE_DIR}/tests/integration/doctor_test.cc
              DEPS tandem::run_job tandem::doctor LABELS integration TIMEOUT 300)
  add_dependencies(doctor_run_test tandem tandem-scheduler tandem-server tandem-worker tandem-simulator tandem_capi)
  tandem_test(plan_command_test SRCS ${CMAKE_SOURCE_DIR}/tests/integration/plan_command_test.cc
              DEPS tandem::run_job tandem::small_job LABELS integration)
  add_dependencies(plan_command_test tandem)
endif()
tandem_test(children_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/cli/children_test.cc
            DEPS tandem::cli LABELS unit)
tandem_test(launch_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/cli/launch_test.cc
            DEPS tandem::cli LABELS unit)
tandem_test(restarts_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/cli/restarts_test.cc
            DEPS tandem::cli LABELS unit)
tandem_test(supervisor_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/cli/supervisor_test.cc
            DEPS tandem::cli LABELS unit)
tandem_test(replay_command_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/cli/replay_command_test.cc
            DEPS tandem::cli LABELS unit)
tandem_test(progress_view_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/cli/progress_view_test.cc
            DEPS tandem::cli LABELS unit)
tandem_test(status_view_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/cli/status_view_test.cc
            DEPS tandem::cli LABELS unit)
tandem_test(describe_run_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/cli/describe_run_test.cc
            DEPS tandem::cli LABELS unit)
tandem_test(log_tail_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/cli/log_tail_test.cc
            DEPS tandem::cli LABELS unit)
tandem_test(doctor_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/tools/doctor_test.cc
            DEPS tandem::doctor LABELS unit)
tandem_test(doctor_peer_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/tools/doctor_peer_test.cc
            DEPS tandem::doctor LABELS unit)
# The doctor beside a device, healthy and broken: in the guest where this machine has none.
if(TARGET PkgConfig::ibverbs AND TARGET PkgConfig::rdmacm)
  add_test(NAME rdma_doctor
    COMMAND ${CMAKE_SOURCE_DIR}/tests/rdma/run_in_guest.sh --net one --seconds 200
            ${CMAKE_SOURCE_DIR}/tests/rdma/doctor_in_guest.sh $<TARGET_FILE:tandem>
            ${CMAKE_SOURCE_DIR}/configs/quickstart.textproto
    WORKING_DIRECTORY ${CMAKE_BINARY_DIR})
  set_tests_properties(rdma_doctor PROPERTIES LABELS rdma TIMEOUT 260 RESOURCE_LOCK guest
    SKIP_RETURN_CODE 77 SKIP_REGULAR_EXPRESSION "SKIPPED ENTIRELY")
endif()
tandem_test(calibration_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/cli/calibration_test.cc
            DEPS tandem::simulator LABELS unit)
