#!/usr/bin/env bash
# What the calibrated chooser loses against the fastest algorithm, over shared memory and TCP, on 2 and 4
# ranks: all algorithms in turns, 1 KB to 64 MB. Prints a table for each, then all medians and worst cases.
#
#   tests/bench/regret.sh [--build build] [--seconds 0.5] [--repetitions 21] [--collective allreduce]
set -euo pipefail
cd "$(dirname "$0")/../.."
build=build seconds=0.5 repetitions=21 collective=allreduce
while [[ $# -gt 0 ]]; do
  case $1 in
    --build) build=$2 ;;
    --seconds) seconds=$2 ;;
    --repetitions) repetitions=$2 ;;
    --collective) collective=$2 ;;
    *) echo "usage: $0 [--build build] [--seconds 0.5] [--repetitions 21] [--collective allreduce]" >&2; exit 2 ;;
  esac
  shift 2
done
results=()
for link in shm tcp; do
  for ranks in 2 4; do
    echo "== $link, $ranks ranks; load: $(cut -d' ' -f1-3 /proc/loadavg)"
    table=$("$build/bin/tandem" bench "$collective" --link $link --ranks $ranks --calibrate --regret \
      --repetitions "$repetitions" --seconds "$seconds" --min 1K --max 64M --factor 2)
    echo "$table"
    results+=("$(printf '%-4s %d ranks: %s' $link $ranks "$(tail -1 <<<"$table")")")
  done
done
echo
printf '%s\n' "${results[@]}"
