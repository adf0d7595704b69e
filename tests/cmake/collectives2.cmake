foreach(name collective_algorithms_test collective_checker_test collective_cost_test)
  tandem_test(${name} SRCS ${CMAKE_SOURCE_DIR}/tests/unit/${name}.cc DEPS tandem::collectives LABELS unit)
endforeach()
