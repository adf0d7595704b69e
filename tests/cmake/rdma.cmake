# What needs an RDMA device: in the guest of tests/rdma/run_in_guest.sh where this machine has none,
# and skipped, with the names of what is missing, where there can be no guest either (exit status 77).
if(TARGET PkgConfig::ibverbs AND TARGET PkgConfig::rdmacm)
  tandem_library(rdma_raw_peer
    SRCS ${CMAKE_SOURCE_DIR}/tests/rdma/raw_peer.cc HDRS ${CMAKE_SOURCE_DIR}/tests/rdma/raw_peer.h
    DEPS tandem::rdma)
  target_link_libraries(transport_conformance_test PRIVATE tandem::rdma_raw_peer)
  target_compile_definitions(transport_conformance_test PRIVATE TANDEM_HAVE_RDMA)

  # in_guest(NAME NETWORK TIMEOUT TARGET ARGUMENT...)
  function(in_guest name network timeout target)
    add_test(NAME ${name}
      COMMAND ${CMAKE_SOURCE_DIR}/tests/rdma/run_in_guest.sh --net ${network} --seconds ${timeout}
              $<TARGET_FILE:${target}> ${ARGN}
      WORKING_DIRECTORY ${CMAKE_BINARY_DIR})
    math(EXPR limit "${timeout} + 60")
    # One guest at a time: an emulated processor takes a whole real one.
    set_tests_properties(${name} PROPERTIES LABELS rdma TIMEOUT ${limit} RESOURCE_LOCK guest
      SKIP_RETURN_CODE 77 SKIP_REGULAR_EXPRESSION "SKIPPED ENTIRELY"
      ENVIRONMENT "TANDEM_SOURCE_DIR=${CMAKE_SOURCE_DIR};TANDEM_BIN_DIR=${CMAKE_BINARY_DIR}/bin;UBSAN_OPTIONS=print_stacktrace=1")
  endfunction()

  # A program of its own: it replaces operator new.
  add_executable(rdma_fault_test ${CMAKE_SOURCE_DIR}/tests/rdma/fault_test.cc)
  set_target_properties(rdma_fault_test PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  target_link_libraries(rdma_fault_test PRIVATE tandem_options tandem::rdma_raw_peer GTest::gtest
                                                tandem::test_main)
  add_dependencies(rdma_fault_test transport_victim)
  # Not yet run here: a link that goes down (the connection is reported lost, but new ones do not
  # come up within the test's limit) and memory that cannot be registered any more (the guest ends).
  in_guest(rdma_faults one 400 rdma_fault_test
           --gtest_filter=-*ALinkThatGoesDown*:*WhatCannotBeRegistered*)

  foreach(network one pair)
    in_guest(rdma_conformance_${network} ${network} 200 transport_conformance_test
             --gtest_filter=Rdma/*)
  endforeach()
  # Large parts need minutes where packets are lost.
  in_guest(rdma_conformance_lossy lossy 200 transport_conformance_test
           --gtest_filter=Rdma/*-*PartsMayBeEmptyOrLarge*)
endif()
