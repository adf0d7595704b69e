tandem_test(collective_schedule_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/collective_schedule_test.cc DEPS tandem::collectives LABELS unit)
