foreach(name collective_schedule_test collective_engine_test collective_alloc_test)
  tandem_test(${name} SRCS ${CMAKE_SOURCE_DIR}/tests/unit/${name}.cc DEPS tandem::collectives LABELS unit)
endforeach()
