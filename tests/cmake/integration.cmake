# Whole jobs as a user runs them: the programs in build/bin as processes. They need the workers, and
# so LibTorch.
add_library(tandem_run_job STATIC ${CMAKE_SOURCE_DIR}/tests/integration/run_job.cc)
add_library(tandem::run_job ALIAS tandem_run_job)
target_link_libraries(tandem_run_job PUBLIC tandem_options tandem::base absl::strings absl::time)

# integration_test(NAME DEPS ...): a tandem_test of tests/integration/NAME.cc that finds the programs
# built.
function(integration_test name)
  cmake_parse_arguments(ARG "" "" "DEPS" ${ARGN})
  if(NOT TANDEM_TORCH)
    return()
  endif()
  tandem_test(${name} SRCS ${CMAKE_SOURCE_DIR}/tests/integration/${name}.cc
              DEPS tandem::run_job ${ARG_DEPS} LABELS integration TIMEOUT 300)
  add_dependencies(${name} tandem tandem-scheduler tandem-server tandem-worker)
endfunction()
