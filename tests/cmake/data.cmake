foreach(name line_reader_test row_parser_test batch_test batch_source_test deal_blocks_test row_blocks_test
             read_place_test statistics_test ncf_test metrics_test datagen_test typed_rows_test arrow_columns_test cache_test)
  tandem_test(${name}
    SRCS ${CMAKE_SOURCE_DIR}/tests/unit/data/${name}.cc
    DEPS tandem::data LABELS unit)
endforeach()

# Against pandas and scikit-learn, where they are installed.
tandem_test(messy_files_test
  SRCS ${CMAKE_SOURCE_DIR}/tests/unit/data/messy_files_test.cc
  DEPS tandem::data LABELS unit TIMEOUT 300)

if(TANDEM_FUZZ)
  include(Fuzz)
  foreach(name cache_fuzz criteo_fuzz libsvm_fuzz delimited_fuzz ncf_fuzz)
    tandem_fuzz(${name} SRCS ${CMAKE_SOURCE_DIR}/tests/fuzz/${name}.cc DEPS tandem::data)
  endforeach()
  tandem_fuzz(frame_fuzz SRCS ${CMAKE_SOURCE_DIR}/tests/fuzz/frame_fuzz.cc DEPS tandem::proto)
endif()
