foreach(name line_reader row_parser batch batch_source ncf metrics datagen)
  tandem_test(${name}_test
    SRCS ${CMAKE_SOURCE_DIR}/tests/unit/${name}_test.cc
    DEPS tandem::data LABELS unit)
endforeach()

if(TANDEM_FUZZ)
  include(Fuzz)
  foreach(name criteo_fuzz libsvm_fuzz delimited_fuzz ncf_fuzz)
    tandem_fuzz(${name} SRCS ${CMAKE_SOURCE_DIR}/tests/fuzz/${name}.cc DEPS tandem::data)
  endforeach()
  tandem_fuzz(frame_fuzz SRCS ${CMAKE_SOURCE_DIR}/tests/fuzz/frame_fuzz.cc DEPS tandem::proto)
endif()
