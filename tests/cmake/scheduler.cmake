tandem_test(scheduler_trace_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/scheduler_trace_test.cc
            DEPS tandem::scheduler LABELS unit)
tandem_test(scheduler_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/scheduler_test.cc
            DEPS tandem::scheduler LABELS unit)
tandem_test(scheduler_shell_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/scheduler_shell_test.cc
            DEPS tandem::scheduler_shell LABELS unit)
