# Studies: what they expand to, what their runs say, what the report makes of it.
foreach(name study_runs_test study_report_test study_run_test study_statistics_test)
  tandem_test(${name} SRCS ${CMAKE_SOURCE_DIR}/tests/unit/tools/${name}.cc DEPS tandem::study LABELS unit)
endforeach()
tandem_test(plan_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/tools/plan_test.cc DEPS tandem::plan LABELS unit)
