foreach(name collective_algorithms_test)
  tandem_test(${name} SRCS ${CMAKE_SOURCE_DIR}/tests/unit/${name}.cc DEPS tandem::collectives LABELS unit)
endforeach()
