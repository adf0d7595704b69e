tandem_test(mailbox_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/collectives/mailbox_test.cc
            DEPS tandem::collective_async tandem::collective_links LABELS unit)
tandem_test(collective_link_test OPTIMIZED SRCS ${CMAKE_SOURCE_DIR}/tests/unit/collectives/collective_link_test.cc
            DEPS tandem::collective_rendezvous LABELS unit)
tandem_test(collective_link_alloc_test
            SRCS ${CMAKE_SOURCE_DIR}/tests/unit/collectives/collective_link_alloc_test.cc
            DEPS tandem::collective_rendezvous LABELS unit)
tandem_test(collective_coordinator_test
            SRCS ${CMAKE_SOURCE_DIR}/tests/unit/collectives/collective_coordinator_test.cc
            DEPS tandem::collective_rendezvous LABELS unit TIMEOUT 300)
