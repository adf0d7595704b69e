tandem_test(world_test SRCS ${CMAKE_SOURCE_DIR}/tests/sim/world_test.cc DEPS tandem::sim LABELS sim)
