foreach(name line_reader row_parser batch batch_source ncf metrics datagen)
  tandem_test(${name}_test
    SRCS ${CMAKE_SOURCE_DIR}/tests/unit/${name}_test.cc
    DEPS tandem::data LABELS unit)
endforeach()
