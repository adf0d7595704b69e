tandem_test(optimizer_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/optim/optimizer_test.cc
            DEPS tandem::optim tandem::base LABELS unit)
# The test spells out single roundings; the compiler must not fuse them there either.
target_compile_options(optimizer_test PRIVATE -ffp-contract=off)
set_target_properties(optimizer_test PROPERTIES DISABLE_PRECOMPILE_HEADERS ON)
tandem_test(initializer_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/optim/initializer_test.cc
            DEPS tandem::optim tandem::base LABELS unit)
tandem_test(range_store_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/server/range_store_test.cc
            DEPS tandem::store LABELS unit)
tandem_test(page_arena_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/server/page_arena_test.cc
            DEPS tandem::store LABELS unit)
tandem_test(memory_budget_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/server/memory_budget_test.cc
            DEPS tandem::store LABELS unit)
tandem_test(limited_rows_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/server/limited_rows_test.cc
            DEPS tandem::store LABELS unit)
tandem_test(limited_range_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/server/limited_range_test.cc
            DEPS tandem::server LABELS unit)
tandem_test(row_writes_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/server/row_writes_test.cc
            DEPS tandem::server tandem::store LABELS unit)
tandem_test(range_file_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/server/range_file_test.cc
            DEPS tandem::store LABELS unit)
tandem_test(store_bench_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/tools/store_bench_test.cc
            DEPS tandem::bench LABELS unit bench)
