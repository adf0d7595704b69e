tandem_test(buffer_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/buffer_test.cc DEPS tandem::base LABELS unit)
tandem_test(file_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/file_test.cc DEPS tandem::base LABELS unit)
tandem_test(process_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/process_test.cc DEPS tandem::base LABELS unit)
tandem_test(frame_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/frame_test.cc DEPS tandem::proto LABELS unit)
