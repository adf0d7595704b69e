tandem_test(collective_group_test OPTIMIZED SRCS ${CMAKE_SOURCE_DIR}/tests/unit/collectives/collective_group_test.cc
            DEPS tandem::collective_group tandem::collective_links LABELS unit)
tandem_test(collective_faults_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/collectives/collective_faults_test.cc
            DEPS tandem::collective_group tandem::collective_links LABELS unit)
tandem_test(collective_codec_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/collectives/collective_codec_test.cc
            DEPS tandem::collective_codecs tandem::collective_links Threads::Threads LABELS unit)
tandem_test(collective_fault_test SRCS ${CMAKE_SOURCE_DIR}/tests/integration/collective_fault_test.cc
            DEPS tandem::collective_rendezvous LABELS integration)
tandem_test(collective_wire_test OPTIMIZED SRCS ${CMAKE_SOURCE_DIR}/tests/unit/collectives/collective_wire_test.cc
            DEPS tandem::collective_group tandem::collective_rendezvous LABELS unit)
tandem_test(collective_alloc_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/collectives/collective_alloc_test.cc
            DEPS tandem::collective_group tandem::collective_links LABELS unit)
tandem_test(dense_reducer_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/worker/dense_reducer_test.cc
            DEPS tandem::worker_core tandem::collective_links tandem::run_job Threads::Threads LABELS unit)
tandem_test(quorum_sums_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/worker/quorum_sums_test.cc
            DEPS tandem::worker_core tandem::collective_links tandem::run_job Threads::Threads LABELS unit)
