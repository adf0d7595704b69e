# The functions that the project's CMakeLists.txt files use. Sources are listed by hand with their
# dependencies. Each header must compile alone (target all_verify_interface_header_sets).

include(CheckCXXCompilerFlag)

add_library(tandem_options INTERFACE)
# Programs outside the tree get headers and libraries, but not our warnings. Installed headers are
# used at include/tandem (Install.cmake).
target_include_directories(tandem_options INTERFACE
  "$<BUILD_INTERFACE:${CMAKE_SOURCE_DIR};${CMAKE_BINARY_DIR}>" $<INSTALL_INTERFACE:include/tandem>)
set(flags -Wall -Wextra -Wshadow -Werror)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64" AND TANDEM_MARCH)
  list(APPEND flags -march=${TANDEM_MARCH})
endif()
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  list(APPEND flags -Wthread-safety)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # g++ 12 reports these falsely inside the standard library at -O2.
  list(APPEND flags -Wno-error=maybe-uninitialized -Wno-restrict -Wno-error=stringop-overflow
                    -Wno-error=array-bounds)
  if(CMAKE_UNITY_BUILD)  # g++ takes each source for a header
    list(APPEND flags -Wno-subobject-linkage)
  endif()
endif()
target_compile_options(tandem_options INTERFACE "$<BUILD_INTERFACE:${flags}>")
if(TANDEM_SANITIZE STREQUAL "address")
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=all
    -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
elseif(TANDEM_SANITIZE STREQUAL "thread")
  add_compile_options(-fsanitize=thread -fno-omit-frame-pointer)
  add_link_options(-fsanitize=thread)
  # Debian's Abseil is not instrumented: see tsan_abseil.cc.
  file(STRINGS ${CMAKE_CURRENT_LIST_DIR}/tsan_abseil.cc wrapped REGEX "\"_ZNK?4absl")
  add_library(tandem_tsan_abseil STATIC ${CMAKE_CURRENT_LIST_DIR}/tsan_abseil.cc)
  foreach(line ${wrapped})
    string(REGEX MATCH "_ZNK?4absl[A-Za-z0-9_]+" symbol "${line}")
    target_link_options(tandem_tsan_abseil INTERFACE "LINKER:--wrap=${symbol}")
  endforeach()
  target_link_libraries(tandem_options INTERFACE tandem_tsan_abseil)
endif()

# Debug information and __FILE__ name sources by their place in the tree, wherever the tree is.
add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:-ffile-prefix-map=${CMAKE_SOURCE_DIR}=.>")

find_program(TANDEM_CCACHE ccache)
if(TANDEM_CCACHE)
  # CCACHE_BASEDIR and CCACHE_NOHASHDIR let a clone in another folder use the same results
  # (compiler_cache_test). CCACHE_SLOPPINESS names the macros and dates in a precompiled header that
  # ccache would otherwise refuse.
  set(launcher ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1
    CCACHE_SLOPPINESS=pch_defines,time_macros ${TANDEM_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${launcher})
  set(CMAKE_C_COMPILER_LAUNCHER ${launcher})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>")
  else()
    # clang writes absolute folders into a precompiled header, so ccache would not reuse the objects
    # of another clone. Without precompiled headers, sanitized code takes 12 % longer to compile.
    set(CMAKE_DISABLE_PRECOMPILE_HEADERS ON)
  endif()
endif()
# lld is several times faster than the system's linker. mold is not used: Debian 12's version (1.10)
# never ends on some of our programs.
find_program(TANDEM_LLD ld.lld)
if(TANDEM_LLD AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND NOT TANDEM_SANITIZE)
  add_link_options(-fuse-ld=lld)
endif()

# The headers that most sources include from the standard library, Abseil, Protocol Buffers and
# GoogleTest. They are parsed once for the libraries and once for the programs (which are compiled
# as position-independent executables). Our own headers are never among them, because a change would
# rebuild everything. clang compiles sources without precompiled headers, so a missing include is
# noticed there (clang_check.py, ./check).
set(precompiled <algorithm> <chrono> <cmath> <cstdint> <cstring> <filesystem> <functional> <map>
                <memory> <string> <thread> <vector> <absl/container/flat_hash_map.h>
                <absl/status/statusor.h>
                <absl/strings/str_cat.h> <absl/synchronization/mutex.h> <absl/time/clock.h>
                <absl/types/span.h> <google/protobuf/generated_enum_reflection.h>
                <google/protobuf/generated_message_reflection.h> <google/protobuf/message.h>
                <google/protobuf/repeated_field.h> <google/protobuf/unknown_field_set.h>)
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/precompiled.cc CONTENT "int main() {}\n")
# precompile(NAME HEADER...) makes a target whose precompiled headers others reuse.
function(precompile name)
  # Only for its options: nothing is called, so no library is needed.
  target_link_libraries(${name} PRIVATE tandem_options)
  target_precompile_headers(${name} PRIVATE ${ARGN})
endfunction()
# A target with compile options of its own sets DISABLE_PRECOMPILE_HEADERS, because the options must
# be the same.
function(reuse_precompiled name from)
  target_precompile_headers(${name} REUSE_FROM ${from})
endfunction()

# CLI11 and nlohmann-json are large and all inline. Code that only reads flags and writes reports
# uses them precompiled and is optimised less, which halves its compile time.
set(TANDEM_COLD_OPTIONS)
if(NOT TANDEM_SANITIZE)
  set(TANDEM_COLD_OPTIONS -O1)
endif()
function(compile_as_cold name)
  target_compile_options(${name} PRIVATE ${TANDEM_COLD_OPTIONS})
  reuse_precompiled(${name} precompiled_cold)
endfunction()

# tandem_package(NAME [REQUIRED] MODULE) makes the target PkgConfig::NAME of pkg-config's MODULE,
# with the headers of that library only. The headers of the libraries below it are not needed. The
# order of pkg-config's options for them changes when a folder is configured again, and the compiler
# cache would then miss.
function(tandem_package name)
  pkg_check_modules(${name} IMPORTED_TARGET GLOBAL ${ARGN})
  if(TARGET PkgConfig::${name})
    set_target_properties(PkgConfig::${name} PROPERTIES
      INTERFACE_INCLUDE_DIRECTORIES "${${name}_INCLUDEDIR}" INTERFACE_COMPILE_OPTIONS "")
  endif()
endfunction()

# tandem_library(NAME [COLD] SRCS a.cc HDRS a.h DEPS tandem::base absl::status). Only with HDRS it
# is an interface library. COLD: see compile_as_cold.
function(tandem_library name)
  cmake_parse_arguments(ARG "COLD" "" "SRCS;HDRS;DEPS" ${ARGN})
  if(ARG_SRCS)
    add_library(tandem_${name} STATIC ${ARG_SRCS})
    if(ARG_COLD)
      compile_as_cold(tandem_${name})
    else()
      reuse_precompiled(tandem_${name} precompiled_library)
    endif()
    set(scope PUBLIC)
  else()
    add_library(tandem_${name} INTERFACE)
    set(scope INTERFACE)
  endif()
  add_library(tandem::${name} ALIAS tandem_${name})
  target_sources(tandem_${name} ${scope} FILE_SET HEADERS BASE_DIRS ${CMAKE_SOURCE_DIR}
                                         FILES ${ARG_HDRS})
  set_target_properties(tandem_${name} PROPERTIES VERIFY_INTERFACE_HEADER_SETS ON)
  target_link_libraries(tandem_${name} ${scope} tandem_options ${ARG_DEPS})
endfunction()

# tandem_binary(NAME [COLD] SRCS main.cc DEPS ...) makes build/bin/NAME.
function(tandem_binary name)
  cmake_parse_arguments(ARG "COLD" "" "SRCS;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SRCS})
  if(ARG_COLD)
    # Compiled as libraries are, so that both use the same precompiled headers.
    set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${name} PRIVATE -fPIC)
    compile_as_cold(${name})
  endif()
  target_link_libraries(${name} PRIVATE tandem_options ${ARG_DEPS})
endfunction()

# The code of a test itself seldom needs optimisation, and with it GoogleTest's templates take twice
# as long to compile. With a sanitizer the tests would be too slow without it.
set(TANDEM_TEST_OPTIONS)
if(NOT TANDEM_SANITIZE)
  set(TANDEM_TEST_OPTIONS -O0)
endif()

# tandem_test(NAME [OPTIMIZED] SRCS a_test.cc DEPS ... LABELS unit TIMEOUT 120 SAMPLED 3 ARGS --x)
# makes one CTest test for one binary. OPTIMIZED: the test computes for long and is compiled like
# the libraries. SAMPLED n: ./check runs one test case of n, drawn by the commit (test_main.cc). A
# check that cannot run here says GTEST_SKIP() << why. Each skipped check is counted (count_tests.py
# reads tests/checks/NAME.xml), and CTest shows a program that skips all its checks as skipped.
function(tandem_test name)
  cmake_parse_arguments(ARG "OPTIMIZED" "TIMEOUT;SAMPLED" "SRCS;DEPS;LABELS;ARGS" ${ARGN})
  if(NOT ARG_SRCS)
    set(ARG_SRCS ${name}.cc)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  if(TANDEM_SANITIZE)
    math(EXPR ARG_TIMEOUT "3 * ${ARG_TIMEOUT}")
  endif()
  add_executable(${name} ${ARG_SRCS})
  if(TANDEM_SANITIZE OR NOT ARG_OPTIMIZED)
    target_compile_options(${name} PRIVATE ${TANDEM_TEST_OPTIONS})
    reuse_precompiled(${name} precompiled_test)
  endif()
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  target_link_libraries(${name} PRIVATE tandem_options ${ARG_DEPS} GTest::gtest GTest::gmock
                                        tandem::test_main)
  set(environment "TANDEM_SOURCE_DIR=${CMAKE_SOURCE_DIR}" "TANDEM_BIN_DIR=${CMAKE_BINARY_DIR}/bin"
    "UBSAN_OPTIONS=print_stacktrace=1"
    "GTEST_OUTPUT=xml:${CMAKE_BINARY_DIR}/tests/checks/${name}.xml")
  if(ARG_SAMPLED)
    list(APPEND environment "TANDEM_SAMPLED=${ARG_SAMPLED}")
    set_property(GLOBAL APPEND PROPERTY TANDEM_SAMPLED "1/${ARG_SAMPLED} of ${name}")
  endif()
  add_test(NAME ${name} COMMAND ${name} ${ARG_ARGS} WORKING_DIRECTORY ${CMAKE_BINARY_DIR})
  # ./check draws the folders whose tests run under AddressSanitizer.
  cmake_path(GET CMAKE_CURRENT_SOURCE_DIR FILENAME folder)
  list(APPEND ARG_LABELS of_${folder})
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT}
    ENVIRONMENT "${environment}" SKIP_REGULAR_EXPRESSION "SKIPPED ENTIRELY")
endfunction()
