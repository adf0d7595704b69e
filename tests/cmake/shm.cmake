tandem_test(shm_ring_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/transport/shm_ring_test.cc
            DEPS tandem::transport LABELS unit)
tandem_test(shm_channel_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/transport/shm_channel_test.cc
            DEPS tandem::transport LABELS unit)
tandem_test(shm_steady_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/transport/shm_steady_test.cc
            DEPS tandem::transport LABELS unit)
tandem_test(multi_transport_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/transport/multi_transport_test.cc
            DEPS tandem::worker_core tandem::server tandem::transport LABELS unit)
if(TANDEM_FUZZ)
  include(Fuzz)
  tandem_fuzz(shm_fuzz SRCS ${CMAKE_SOURCE_DIR}/tests/fuzz/shm_fuzz.cc DEPS tandem::transport)
endif()
