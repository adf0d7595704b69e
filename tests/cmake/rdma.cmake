# What needs an RDMA device: in the guest of tests/rdma/run_in_guest.sh where this machine has none,
# and skipped, with the names of what is missing, where there can be no guest either (exit status 77).
if(TARGET PkgConfig::ibverbs AND TARGET PkgConfig::rdmacm)
  tandem_library(rdma_raw_peer
    SRCS ${CMAKE_SOURCE_DIR}/tests/rdma/raw_peer.cc HDRS ${CMAKE_SOURCE_DIR}/tests/rdma/raw_peer.h
    DEPS tandem::rdma)
  target_link_libraries(transport_conformance_test PRIVATE tandem::rdma_raw_peer)
  target_compile_definitions(transport_conformance_test PRIVATE TANDEM_HAVE_RDMA)

  # A program of its own: it replaces operator new.
  add_executable(rdma_fault_test ${CMAKE_SOURCE_DIR}/tests/rdma/fault_test.cc)
  set_target_properties(rdma_fault_test PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  target_link_libraries(rdma_fault_test PRIVATE tandem_options tandem::rdma_raw_peer GTest::gtest
                                                tandem::test_main)
  add_dependencies(rdma_fault_test transport_victim)

  add_executable(rdma_fallback_test ${CMAKE_SOURCE_DIR}/tests/rdma/fallback_test.cc)
  set_target_properties(rdma_fallback_test PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  target_link_libraries(rdma_fallback_test PRIVATE tandem::rdma_raw_peer tandem::server tandem::transport
                                                   tandem::worker_core GTest::gtest tandem::test_main)

  if(TANDEM_TORCH)
    add_executable(rdma_job_test ${CMAKE_SOURCE_DIR}/tests/rdma/job_test.cc)
    set_target_properties(rdma_job_test PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
    target_link_libraries(rdma_job_test PRIVATE tandem::small_job tandem::rdma GTest::gtest)
    add_dependencies(rdma_job_test tandem tandem-scheduler tandem-server tandem-worker)
  endif()

  # What tests/rdma/bench.py runs beside perftest.
  tandem_binary(rdma_bench SRCS ${CMAKE_SOURCE_DIR}/tests/rdma/rdma_bench.cc
                DEPS tandem::rdma tandem::server tandem::transport tandem::worker_core)

  # in_guest(NAME WHICH SECONDS): one start of the guest for all tests of a kind. First: an emulated
  # processor takes a whole real one. Instrumented programs take longer, and more memory.
  set(memory 3072)
  if(TANDEM_SANITIZE)
    set(memory 6144)
  endif()
  function(in_guest name which seconds)
    if(TANDEM_SANITIZE)
      math(EXPR seconds "${seconds} * 3")
    endif()
    add_test(NAME ${name}
      COMMAND ${CMAKE_SOURCE_DIR}/tests/rdma/run_in_guest.sh --net one --seconds ${seconds} --memory ${memory}
              ${CMAKE_SOURCE_DIR}/tests/rdma/guest_tests.sh ${CMAKE_BINARY_DIR}/tests ${which}
      WORKING_DIRECTORY ${CMAKE_BINARY_DIR})
    math(EXPR limit "${seconds} + 120")
    set_tests_properties(${name} PROPERTIES TIMEOUT ${limit} RESOURCE_LOCK guest COST 1000 SKIP_RETURN_CODE 77
      ENVIRONMENT "TANDEM_SOURCE_DIR=${CMAKE_SOURCE_DIR};TANDEM_BIN_DIR=${CMAKE_BINARY_DIR}/bin;UBSAN_OPTIONS=print_stacktrace=1")
  endfunction()
  in_guest(rdma_quick quick 600)
  set_property(GLOBAL APPEND PROPERTY TANDEM_SAMPLED "1/16 of the tests of other RDMA networks (all: ./check --rdma)")
  in_guest(rdma_all all 5400)
  set_tests_properties(rdma_quick PROPERTIES LABELS guest)
  set_tests_properties(rdma_all PROPERTIES LABELS rdma)
endif()
