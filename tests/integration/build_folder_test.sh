#!/bin/bash
# ./quickstart and ./check print a usage, and refuse a build folder that compiles the sources of another folder.
#   tests/integration/build_folder_test.sh SOURCE_DIR
set -euo pipefail
source_dir=$(readlink -f "$1")

work=$(readlink -f "$(mktemp -d)")
trap 'rm -rf "$work"' EXIT

# expect STATUS WORDS COMMAND...: the status of the command, and what it prints.
expect() {
  local status=0 output
  output=$("${@:3}" 2>&1) || status=$?
  [[ $status == "$1" && $output == *"$2"* ]] && return
  printf '%s: status %s, expected %s and "%s":\n%s\n' "${*:3}" "$status" "$1" "$2" "$output"
  exit 1
}

mkdir -p "$work/copy/build" "$work/other"
cp -r "$source_dir/quickstart" "$source_dir/check" "$source_dir/cmake" "$work/copy"
touch "$work/copy/build/build.ninja"
echo "CMAKE_HOME_DIRECTORY:INTERNAL=$work/other" >"$work/copy/build/CMakeCache.txt"
cd "$work"
for script in quickstart check; do
  expect 0 "  ./$script" "copy/$script" --help
  expect 2 "  ./$script" "copy/$script" --no-such-flag
  expect 2 "build: this build folder compiles $work/other, not $work/copy; hint: rm -r build" "$work/copy/$script"
done
