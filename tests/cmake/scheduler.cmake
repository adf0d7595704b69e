tandem_test(log_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/node/log_test.cc DEPS tandem::log LABELS unit)
tandem_test(scheduler_trace_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/scheduler/scheduler_trace_test.cc
            DEPS tandem::scheduler LABELS unit)
tandem_test(scheduler_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/scheduler/scheduler_test.cc
            DEPS tandem::scheduler LABELS unit)
tandem_test(large_job_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/scheduler/large_job_test.cc
            DEPS tandem::scheduler LABELS unit)
tandem_test(agents_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/scheduler/agents_test.cc
            DEPS tandem::scheduler LABELS unit)
tandem_test(scheduler_parts_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/scheduler/scheduler_parts_test.cc
            DEPS tandem::scheduler LABELS unit)
tandem_test(speed_meter_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/scheduler/speed_meter_test.cc
            DEPS tandem::scheduler LABELS unit)
tandem_test(status_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/scheduler/status_test.cc
            DEPS tandem::scheduler LABELS unit)
tandem_test(scheduler_shell_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/scheduler/scheduler_shell_test.cc
            DEPS tandem::scheduler_shell LABELS unit)
tandem_test(http_server_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/scheduler/http_server_test.cc
            DEPS tandem::scheduler_shell LABELS unit)
tandem_test(watch_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/scheduler/watch_test.cc
            DEPS tandem::scheduler_shell LABELS unit)
tandem_test(beat_thread_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/node/beat_thread_test.cc
            DEPS tandem::node LABELS unit)
tandem_test(server_shell_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/server/server_shell_test.cc
            DEPS tandem::server_shell LABELS unit)
tandem_test(replacements_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/scheduler/replacements_test.cc
            DEPS tandem::scheduler LABELS unit)
