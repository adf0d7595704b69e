foreach(name world_test equality_test lives_test local_steps_test replay_test staleness_test store_test straggler_test
             timing_test)
  tandem_test(${name} SRCS ${CMAKE_SOURCE_DIR}/tests/sim/${name}.cc DEPS tandem::sim LABELS sim
              TIMEOUT 600)  # hundreds of seeds; a sanitizer makes them many times slower
endforeach()
# Held to a plain loop to the bit: no fused multiply-add.
target_compile_options(local_steps_test PRIVATE -ffp-contract=off)
set_target_properties(local_steps_test PROPERTIES DISABLE_PRECOMPILE_HEADERS ON)
tandem_test(real_data_test SRCS ${CMAKE_SOURCE_DIR}/tests/sim/real_data_test.cc
  DEPS tandem::sim tandem::step_runner LABELS sim)
tandem_test(quorum_pace_test SRCS ${CMAKE_SOURCE_DIR}/tests/sim/quorum_pace_test.cc
  DEPS tandem::sim tandem::plan LABELS sim)
tandem_test(clicks_test SRCS ${CMAKE_SOURCE_DIR}/tests/sim/clicks_test.cc DEPS tandem::sim LABELS sim)
tandem_test(stability_test SRCS ${CMAKE_SOURCE_DIR}/tests/sim/stability_test.cc
  DEPS tandem::server tandem::policies LABELS sim)
