# Whole jobs as a user runs them: the programs in build/bin as processes. They need the workers, and
# so LibTorch.
add_library(tandem_run_job STATIC ${CMAKE_SOURCE_DIR}/tests/integration/run_job.cc)
add_library(tandem::run_job ALIAS tandem_run_job)
target_link_libraries(tandem_run_job PUBLIC tandem_options tandem::base absl::strings absl::time)

# integration_test(NAME [SAMPLED n] DEPS ...): a tandem_test of tests/integration/NAME.cc that finds the
# programs built.
function(integration_test name)
  cmake_parse_arguments(ARG "" "SAMPLED" "DEPS" ${ARGN})
  if(NOT TANDEM_TORCH)
    return()
  endif()
  tandem_test(${name} SRCS ${CMAKE_SOURCE_DIR}/tests/integration/${name}.cc
              DEPS tandem::run_job ${ARG_DEPS} LABELS integration TIMEOUT 300 SAMPLED ${ARG_SAMPLED})
  set_tests_properties(${name} PROPERTIES COST 100)  # whole jobs begin before what takes milliseconds
  add_dependencies(${name} tandem tandem-scheduler tandem-server tandem-worker)
endfunction()

if(TANDEM_TORCH)
  # Trained models as plain data, a small job, and the plain loop that says what it must compute.
  add_library(tandem_small_job STATIC
    ${CMAKE_SOURCE_DIR}/tests/integration/model_bits.cc
    ${CMAKE_SOURCE_DIR}/tests/integration/plain_loop.cc
    ${CMAKE_SOURCE_DIR}/tests/integration/small_job.cc)
  add_library(tandem::small_job ALIAS tandem_small_job)
  target_link_libraries(tandem_small_job PUBLIC tandem::run_job tandem::worker_core tandem::models
                                                tandem::checkpoint tandem::collective_group
                                                tandem::test_main)
endif()

integration_test(bitwise_test DEPS tandem::small_job)
integration_test(blocks_test SAMPLED 2 DEPS tandem::small_job)
integration_test(cache_job_test DEPS tandem::small_job)
integration_test(checkpoint_test SAMPLED 2 DEPS tandem::small_job)
integration_test(resume_test SAMPLED 6 DEPS tandem::small_job tandem::cli)
integration_test(restart_test SAMPLED 6 DEPS tandem::small_job tandem::cli)
integration_test(memory_job_test SAMPLED 3 DEPS tandem::small_job tandem::cli)
integration_test(replay_job_test SAMPLED 2 DEPS tandem::small_job tandem::cli tandem::checkpoint)
integration_test(simulate_test SAMPLED 2 DEPS tandem::small_job tandem::checkpoint)
integration_test(delay_test DEPS tandem::data tandem::test_main)
if(TARGET simulate_test)
  add_dependencies(delay_test tandem-simulator)
  add_dependencies(simulate_test tandem-simulator)
  add_dependencies(replay_job_test tandem-simulator)
endif()
integration_test(keep_best_test DEPS tandem::small_job tandem::data tandem::checkpoint)
integration_test(trace_test DEPS tandem::small_job)
integration_test(predict_test DEPS tandem::small_job tandem::data)
integration_test(dense_job_test DEPS tandem::small_job)
integration_test(quorum_job_test SAMPLED 2 DEPS tandem::small_job tandem::cli)
integration_test(recorded_staleness_test DEPS tandem::small_job)
integration_test(slow_worker_test DEPS tandem::small_job)
integration_test(strangers_test SAMPLED 3 DEPS tandem::small_job tandem::proto tandem::cli)
integration_test(outside_test DEPS tandem::small_job)
integration_test(attached_test DEPS tandem::small_job tandem::worker tandem::scheduler_shell tandem::server_shell)
integration_test(capi_test DEPS tandem::small_job tandem::worker tandem::scheduler_shell tandem::server_shell)
tandem_test(capi_group_test SRCS ${CMAKE_SOURCE_DIR}/tests/integration/capi_group_test.cc
            DEPS tandem::run_job tandem::capi LABELS integration TIMEOUT 300)
integration_test(python_test SAMPLED 5 DEPS tandem::data tandem::optim)
integration_test(python_resume_test SAMPLED 3 DEPS tandem::small_job tandem::cli)
integration_test(python_models_test SAMPLED 3 DEPS tandem::models tandem::model_border tandem::small_job)
integration_test(script_test SAMPLED 3 DEPS tandem::models tandem::model_border tandem::small_job tandem::cli)
foreach(name attached_test capi_test)
  if(TARGET ${name})
    target_sources(${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests/integration/program_cluster.cc)
  endif()
endforeach()
if(TARGET capi_test)
  add_dependencies(capi_test tandem_example)
  add_dependencies(python_test tandem_capi)
  set_tests_properties(python_test PROPERTIES TIMEOUT 1500)  # all cases with PyTorch 2 take 10 minutes
  set_tests_properties(python_resume_test PROPERTIES TIMEOUT 900)
  add_dependencies(python_models_test tandem_capi)
  add_dependencies(script_test tandem_capi)
  add_dependencies(python_resume_test tandem_capi)
endif()
if(TARGET resume_test)  # all policies, killed and not
  set_tests_properties(resume_test PROPERTIES TIMEOUT 900 COST 500)
endif()
if(TARGET outside_test)
  add_dependencies(outside_test tandem_client)
  target_compile_definitions(outside_test PRIVATE TANDEM_CMAKE="${CMAKE_COMMAND}"
    TANDEM_BUILD="${CMAKE_BINARY_DIR}" TANDEM_OUTSIDE_SOURCE="${CMAKE_SOURCE_DIR}/tests/outside")
  set_tests_properties(outside_test PROPERTIES TIMEOUT 900)
endif()

integration_test(install_test DEPS tandem::data)
if(TARGET install_test)
  add_dependencies(install_test tandem_capi tandem_client)
  target_compile_definitions(install_test PRIVATE TANDEM_CMAKE="${CMAKE_COMMAND}"
    TANDEM_BUILD="${CMAKE_BINARY_DIR}" TANDEM_INSTALLED_SOURCE="${CMAKE_SOURCE_DIR}/tests/installed"
    TANDEM_MAKE_WHEEL="${CMAKE_SOURCE_DIR}/cmake/make_wheel.sh")
  set_tests_properties(install_test PROPERTIES TIMEOUT 900)
endif()

if(TANDEM_TORCH)
  add_test(NAME pages_test
    COMMAND python3 ${CMAKE_SOURCE_DIR}/tests/integration/pages_test.py ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR})
  set_tests_properties(pages_test PROPERTIES LABELS integration TIMEOUT 600)
  add_test(NAME observe_test
    COMMAND python3 ${CMAKE_SOURCE_DIR}/tests/integration/observe_test.py ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR})
  set_tests_properties(observe_test PROPERTIES LABELS integration TIMEOUT 600 ENVIRONMENT TANDEM_SAMPLED=3)
  set_property(GLOBAL APPEND PROPERTY TANDEM_SAMPLED "1/3 of observe_test")
  # Kills, stops and full disks; tests/chaos/punish.py has longer ones.
  add_test(NAME punish_test
    COMMAND ${CMAKE_SOURCE_DIR}/tests/python/interpreter ${CMAKE_SOURCE_DIR}/tests/chaos/punish.py --build ${CMAKE_BINARY_DIR} short)
  add_test(NAME punish_disk_test
    COMMAND ${CMAKE_SOURCE_DIR}/tests/python/interpreter ${CMAKE_SOURCE_DIR}/tests/chaos/punish.py --build ${CMAKE_BINARY_DIR} disk)
  set_tests_properties(punish_test punish_disk_test PROPERTIES LABELS integration TIMEOUT 600 SKIP_RETURN_CODE 77)
  set_tests_properties(punish_test PROPERTIES COST 100)
  set_tests_properties(punish_disk_test PROPERTIES ENVIRONMENT TANDEM_SAMPLED=3)
  set_property(GLOBAL APPEND PROPERTY TANDEM_SAMPLED "1/3 of punish_disk_test")
  add_test(NAME results_test
    COMMAND python3 ${CMAKE_SOURCE_DIR}/tests/integration/results_test.py ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR})
  set_tests_properties(results_test PROPERTIES LABELS integration TIMEOUT 300)
  add_test(NAME python_groups_test
    COMMAND ${CMAKE_SOURCE_DIR}/tests/python/interpreter ${CMAKE_SOURCE_DIR}/tests/integration/python_groups_test.py ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR})
  set_tests_properties(python_groups_test PROPERTIES LABELS integration TIMEOUT 600 SKIP_RETURN_CODE 77)
  add_test(NAME python_hints_test
    COMMAND ${CMAKE_SOURCE_DIR}/tests/python/interpreter ${CMAKE_SOURCE_DIR}/tests/integration/python_hints_test.py ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR})
  set_tests_properties(python_hints_test PROPERTIES LABELS integration TIMEOUT 300 SKIP_RETURN_CODE 77)
  # Skipped without pyarrow; docs/HACKING.md says how to run it.
  add_test(NAME parquet_test
    COMMAND ${CMAKE_SOURCE_DIR}/tests/python/interpreter ${CMAKE_SOURCE_DIR}/tests/integration/parquet_test.py ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR})
  set_tests_properties(parquet_test PROPERTIES LABELS integration TIMEOUT 300 SKIP_RETURN_CODE 77)
  # Skipped without torchrec; docs/HACKING.md says how to run it.
  add_test(NAME torchrec_test
    COMMAND ${CMAKE_SOURCE_DIR}/tests/python/interpreter ${CMAKE_SOURCE_DIR}/tests/integration/torchrec_test.py ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR})
  set_tests_properties(torchrec_test PROPERTIES LABELS integration TIMEOUT 900 SKIP_RETURN_CODE 77)
  add_test(NAME examples_test
    COMMAND ${CMAKE_SOURCE_DIR}/tests/python/interpreter ${CMAKE_SOURCE_DIR}/tests/integration/examples_test.py ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR})
  set_tests_properties(examples_test PROPERTIES LABELS integration TIMEOUT 600 SKIP_RETURN_CODE 77)
  # Debian's own, which has scikit-learn if anything has; skipped without.
  add_test(NAME logistic_test
    COMMAND ${CMAKE_SOURCE_DIR}/tests/python/interpreter ${CMAKE_SOURCE_DIR}/tests/integration/logistic_test.py ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR})
  set_tests_properties(logistic_test PROPERTIES LABELS integration TIMEOUT 600 SKIP_RETURN_CODE 77)
endif()
