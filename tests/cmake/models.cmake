tandem_test(init_parameters_test
  SRCS ${CMAKE_SOURCE_DIR}/tests/unit/models/init_parameters_test.cc
  DEPS tandem::model_border LABELS unit)

# The rest needs LibTorch.
if(NOT TANDEM_TORCH)
  return()
endif()

tandem_test(pair_interaction_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/models/pair_interaction_test.cc
  DEPS tandem::pair_interaction tandem::base LABELS unit)

# The models are compared with LibTorch's autograd, so this file includes LibTorch.
tandem_test(models_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/models/models_test.cc
  DEPS tandem::models tandem::torch tandem::base LABELS unit)
set_target_properties(models_test PROPERTIES
  CXX_STANDARD ${TANDEM_TORCH_STANDARD} DISABLE_PRECOMPILE_HEADERS ON)

tandem_test(job_budget_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/job/job_budget_test.cc
  DEPS tandem::models tandem::data tandem::job LABELS unit)

add_executable(model_bench ${CMAKE_SOURCE_DIR}/tests/bench/model_bench.cc)
target_link_libraries(model_bench PRIVATE tandem_options tandem::models tandem::base)
add_test(NAME model_bench_tiny COMMAND model_bench --tiny)
set_tests_properties(model_bench_tiny PROPERTIES LABELS bench TIMEOUT 120)
