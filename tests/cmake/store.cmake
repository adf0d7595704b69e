tandem_library(store_bench
  SRCS ${CMAKE_SOURCE_DIR}/tests/bench/store_bench.cc
  HDRS ${CMAKE_SOURCE_DIR}/tests/bench/store_bench.h
  DEPS tandem::store tandem::optim tandem::base absl::strings absl::str_format PkgConfig::xxhash)
