tandem_library(store_bench
  SRCS ${CMAKE_SOURCE_DIR}/tests/bench/store_bench.cc
  HDRS ${CMAKE_SOURCE_DIR}/tests/bench/store_bench.h
  DEPS tandem::store tandem::optim tandem::base absl::strings absl::str_format PkgConfig::xxhash)

tandem_test(optimizer_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/optimizer_test.cc
            DEPS tandem::optim tandem::base LABELS unit)
# The test spells out single roundings; the compiler must not fuse them there either.
target_compile_options(optimizer_test PRIVATE -ffp-contract=off)
set_target_properties(optimizer_test PROPERTIES DISABLE_PRECOMPILE_HEADERS ON)
tandem_test(initializer_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/initializer_test.cc
            DEPS tandem::optim tandem::base LABELS unit)
tandem_test(range_store_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/range_store_test.cc
            DEPS tandem::store LABELS unit)
tandem_test(range_file_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/range_file_test.cc
            DEPS tandem::store LABELS unit)
tandem_test(store_bench_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/store_bench_test.cc
            DEPS tandem::store_bench LABELS unit bench)
