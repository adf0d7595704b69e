tandem_binary(transport_victim SRCS ${CMAKE_SOURCE_DIR}/tests/unit/transport/transport_victim.cc
              DEPS tandem::transport tandem::rdma)
tandem_test(transport_conformance_test
            SRCS ${CMAKE_SOURCE_DIR}/tests/unit/transport/transport_conformance_test.cc
            DEPS tandem::transport LABELS unit TIMEOUT 600)
add_dependencies(transport_conformance_test transport_victim)
tandem_test(job_keys_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/transport/job_keys_test.cc
            DEPS tandem::transport LABELS unit)
tandem_test(rdma_devices_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/rdma/rdma_devices_test.cc
            DEPS tandem::rdma LABELS unit)
tandem_binary(transport_roundtrip SRCS ${CMAKE_SOURCE_DIR}/tests/bench/transport_roundtrip.cc
              DEPS tandem::transport)
# Its receiver adds up what it got: in vectors, so that it is as fast as memory is read.
target_compile_options(transport_roundtrip PRIVATE -O3)
add_test(NAME transport_roundtrip_tiny COMMAND transport_roundtrip --tiny)
set_tests_properties(transport_roundtrip_tiny PROPERTIES LABELS bench TIMEOUT 120)
