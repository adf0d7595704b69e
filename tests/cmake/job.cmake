tandem_test(job_test
  SRCS ${CMAKE_SOURCE_DIR}/tests/unit/job_test.cc
  DEPS tandem::job LABELS unit)
tandem_test(job_docs_test
  SRCS ${CMAKE_SOURCE_DIR}/tests/unit/job_docs_test.cc
  DEPS tandem::job LABELS unit)
tandem_test(tidy_test
  SRCS ${CMAKE_SOURCE_DIR}/tests/unit/tidy_test.cc
  DEPS tandem::base LABELS unit)
if(TANDEM_FUZZ)
  include(Fuzz)
  tandem_fuzz(job_fuzz SRCS ${CMAKE_SOURCE_DIR}/tests/fuzz/job_fuzz.cc DEPS tandem::job)
endif()
