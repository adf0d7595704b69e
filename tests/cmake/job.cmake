tandem_test(silence_times_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/job/silence_times_test.cc DEPS tandem::job LABELS unit)
tandem_test(job_test
  SRCS ${CMAKE_SOURCE_DIR}/tests/unit/job/job_test.cc
  DEPS tandem::job LABELS unit)
tandem_test(step_time_test
  SRCS ${CMAKE_SOURCE_DIR}/tests/unit/job/step_time_test.cc
  DEPS tandem::job LABELS unit)
tandem_test(job_docs_test
  SRCS ${CMAKE_SOURCE_DIR}/tests/unit/job/job_docs_test.cc
  DEPS tandem::job LABELS unit)
tandem_test(tidy_test
  SRCS ${CMAKE_SOURCE_DIR}/tests/unit/tidy_test.cc
  DEPS tandem::base LABELS unit)
# The closing line of ./check.
add_test(NAME count_tests_test
  COMMAND python3 ${CMAKE_SOURCE_DIR}/tests/unit/count_tests_test.py ${CMAKE_SOURCE_DIR}/cmake/count_tests.py)
set_tests_properties(count_tests_test PROPERTIES LABELS unit TIMEOUT 60)
# Compiled results are shared between folders (cmake/Tandem.cmake).
add_test(NAME compiler_cache_test
  COMMAND ${CMAKE_SOURCE_DIR}/tests/integration/compiler_cache_test.sh ${CMAKE_SOURCE_DIR})
set_tests_properties(compiler_cache_test PROPERTIES LABELS unit TIMEOUT 120 SKIP_RETURN_CODE 77)
add_test(NAME build_folder_test
  COMMAND ${CMAKE_SOURCE_DIR}/tests/integration/build_folder_test.sh ${CMAKE_SOURCE_DIR})
set_tests_properties(build_folder_test PROPERTIES LABELS unit TIMEOUT 60)
# The recipes of docs/HACKING.md: here, that they still fit; ./check --all builds them.
add_test(NAME recipes_fit COMMAND ${CMAKE_SOURCE_DIR}/tests/recipes/run.sh --apply)
set_tests_properties(recipes_fit PROPERTIES LABELS unit TIMEOUT 60)
if(TANDEM_FUZZ)
  include(Fuzz)
  tandem_fuzz(job_fuzz SRCS ${CMAKE_SOURCE_DIR}/tests/fuzz/job_fuzz.cc DEPS tandem::job)
endif()
