foreach(name collective_schedule_test collective_engine_test collective_alloc_test)
  tandem_test(${name} SRCS ${CMAKE_SOURCE_DIR}/tests/unit/${name}.cc DEPS tandem::collectives_legacy LABELS unit)
endforeach()

tandem_test(collective_reduce_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/collective_reduce_test.cc
            DEPS tandem::collective_reduce tandem::optim LABELS unit)
