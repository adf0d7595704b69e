#!/bin/bash
# The compiler cache knows a tree again in another folder: two copies of one small project, which uses
# cmake/Tandem.cmake with its precompiled headers, compile the same source, and the second one only has hits.
# The real tree compiles with the same commands when it is configured again.
#   tests/integration/compiler_cache_test.sh SOURCE_DIR
set -euo pipefail
source_dir=$(readlink -f "$1")
command -v ccache >/dev/null || { echo "skipped: ccache is not installed"; exit 77; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset CCACHE_DISABLE CCACHE_BASEDIR CCACHE_NOHASHDIR CCACHE_SLOPPINESS
export CCACHE_DIR=$work/cache

for copy in first second; do
  mkdir -p "$work/$copy/tree"
  cd "$work/$copy/tree"
  cp -r "$source_dir/cmake" cmake
  cat >CMakeLists.txt <<'PROJECT'
cmake_minimum_required(VERSION 3.24)
project(cached LANGUAGES C CXX)
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_UNITY_BUILD ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_BUILD_TYPE RelWithDebInfo)
include(cmake/Tandem.cmake)
add_library(precompiled_library STATIC ${CMAKE_BINARY_DIR}/precompiled.cc)
precompile(precompiled_library <string> <vector>)
tandem_library(words SRCS one.cc two.cc HDRS words.h)
PROJECT
  echo '#include <string>
std::string One();' >words.h
  echo '#include "words.h"
std::string One() { return __FILE__; }' >one.cc
  echo '#include "words.h"
std::string Two() { return One(); }' >two.cc
  cmake -G Ninja -S . -B build >/dev/null
  ccache --zero-stats >/dev/null
  cmake --build build >build.log || { cat build.log; exit 1; }
done

statistics=$(ccache --print-stats)
if ! grep -qE '^(direct|preprocessed)_cache_hit[[:space:]]+[1-9]' <<<"$statistics" ||
  ! grep -qE '^cache_miss[[:space:]]+0$' <<<"$statistics"; then
  echo "the second folder was expected to have hits and no miss, but has:"
  grep -vE '[[:space:]]0$' <<<"$statistics"
  exit 1
fi
echo "the second folder has hits alone"

for time in first second; do
  cmake -G Ninja -S "$source_dir" -B "$work/build" -DCMAKE_UNITY_BUILD=ON >/dev/null
  cp "$work/build/compile_commands.json" "$work/$time.json"
done
cmp "$work/first.json" "$work/second.json" || { echo "configured again, the tree has other commands"; exit 1; }
echo "configured again, the tree has the same commands"
