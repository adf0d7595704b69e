tandem_test(collective_reduce_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/collectives/collective_reduce_test.cc
            DEPS tandem::collective_reduce tandem::optim LABELS unit)
