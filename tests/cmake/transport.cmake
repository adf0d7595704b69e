tandem_binary(transport_victim SRCS ${CMAKE_SOURCE_DIR}/tests/unit/transport_victim.cc
              DEPS tandem::transport)
tandem_test(transport_conformance_test
            SRCS ${CMAKE_SOURCE_DIR}/tests/unit/transport_conformance_test.cc
            DEPS tandem::transport LABELS unit TIMEOUT 300)
add_dependencies(transport_conformance_test transport_victim)
