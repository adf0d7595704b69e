#!/usr/bin/env bash
# What the calibrated chooser loses against the fastest algorithm, over shared memory and TCP, on 2 and 4
# ranks: all algorithms in turns, 1 KB to 64 MB. Prints a table for each, then all medians and worst cases.
#
#   tests/bench/regret.sh [--build build] [--seconds 0.5] [--repetitions 21] [--collective allreduce] [--tiny]
#
# --tiny makes everything small: it shows that the script works, and measures nothing.
set -euo pipefail
cd "$(dirname "$0")/../.."
build=build seconds=0.5 repetitions=21 collective=allreduce max=64M ranks_of_runs=(2 4)
while [[ $# -gt 0 ]]; do
  case $1 in
    --build) build=$2; shift 2 ;;
    --seconds) seconds=$2; shift 2 ;;
    --repetitions) repetitions=$2; shift 2 ;;
    --collective) collective=$2; shift 2 ;;
    --tiny) seconds=0.01 repetitions=2 max=2K ranks_of_runs=(2); shift ;;
    *) sed -n '5s/^# */usage: /p' "$0" >&2; exit 2 ;;
  esac
done
results=()
for link in shm tcp; do
  for ranks in "${ranks_of_runs[@]}"; do
    echo "== $link, $ranks ranks; load: $(cut -d' ' -f1-3 /proc/loadavg)"
    table=$("$build/bin/algorithm_bench" regret "$collective" --link $link --ranks $ranks \
      --repetitions "$repetitions" --seconds "$seconds" --min 1K --max "$max" --factor 2)
    echo "$table"
    results+=("$(printf '%-4s %d ranks: %s' $link $ranks "$(tail -1 <<<"$table")")")
  done
done
echo
printf '%s\n' "${results[@]}"
