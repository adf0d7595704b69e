tandem_test(shm_ring_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/shm_ring_test.cc
            DEPS tandem::transport LABELS unit)
tandem_test(shm_channel_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/shm_channel_test.cc
            DEPS tandem::transport LABELS unit)
tandem_test(shm_steady_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/shm_steady_test.cc
            DEPS tandem::transport LABELS unit)
tandem_test(multi_transport_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/multi_transport_test.cc
            DEPS tandem::worker_core tandem::server tandem::transport LABELS unit)
# Beside PyTorch RPC; skipped where PyTorch is missing (exit status 77).
add_test(NAME pushpull_vs_torch_rpc_tiny
  COMMAND ${CMAKE_SOURCE_DIR}/tests/bench/pushpull_vs_torch_rpc.sh --tiny --build ${CMAKE_BINARY_DIR})
set_tests_properties(pushpull_vs_torch_rpc_tiny PROPERTIES LABELS bench TIMEOUT 120 SKIP_RETURN_CODE 77)

if(TANDEM_FUZZ)
  include(Fuzz)
  tandem_fuzz(shm_fuzz SRCS ${CMAKE_SOURCE_DIR}/tests/fuzz/shm_fuzz.cc DEPS tandem::transport)
endif()
