tandem_test(buffer_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/base/buffer_test.cc DEPS tandem::base LABELS unit)
tandem_test(file_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/base/file_test.cc DEPS tandem::base LABELS unit)
tandem_test(process_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/base/process_test.cc DEPS tandem::base LABELS unit)
tandem_test(frame_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/proto/frame_test.cc DEPS tandem::proto LABELS unit)
