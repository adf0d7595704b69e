# The command line as a user meets it. These start whole jobs, and so need LibTorch.
if(TANDEM_TORCH)
  foreach(name refusal_test kill_test netns_test terminal_test)
    tandem_test(${name} SRCS ${CMAKE_SOURCE_DIR}/tests/integration/${name}.cc
                DEPS tandem::run_job tandem::small_job
                LABELS integration TIMEOUT 600)
    add_dependencies(${name} tandem tandem-scheduler tandem-server tandem-worker)
  endforeach()
  target_link_libraries(terminal_test PRIVATE util)  # forkpty
  tandem_test(doctor_run_test SRCS ${CMAKE_SOURCE_DIR}/tests/integration/doctor_test.cc
              DEPS tandem::run_job tandem::doctor LABELS integration TIMEOUT 300)
  add_dependencies(doctor_run_test tandem tandem-scheduler tandem-server tandem-worker)
endif()
tandem_test(progress_view_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/progress_view_test.cc
            DEPS tandem::cli LABELS unit)
tandem_test(doctor_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/doctor_test.cc
            DEPS tandem::doctor LABELS unit)
tandem_test(doctor_peer_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/doctor_peer_test.cc
            DEPS tandem::doctor LABELS unit)
