# tandem_fuzz(NAME SRCS a_fuzz.cc DEPS ...) makes build/fuzz/NAME, a libFuzzer program. It needs
# clang and TANDEM_FUZZ=ON. `./check --all` configures it with coverage and sanitizers in every
# object.
include_guard(GLOBAL)
function(tandem_fuzz name)
  cmake_parse_arguments(ARG "" "" "SRCS;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SRCS})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/fuzz)
  target_link_libraries(${name} PRIVATE tandem_options ${ARG_DEPS})
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
endfunction()
