#!/usr/bin/env bash
# All-reduce of floats on this machine: Tandem beside Open MPI (its default, which is shared memory on
# one host, and forced to TCP) and Gloo (the best of its algorithms at each size, TCP), with 2 and 4 ranks.
# All of them take turns, round by round, so that they see the same moods of the machine; every program
# times the same thing in the same way (peer_timing.h).
#
#   tests/bench/collectives_vs_peers.sh [--rounds N] [--seconds S] [--build DIR] [--ranks 2,4]
#                                       [--sizes BYTES,...] [--with COMMAND] [--tiny]
#
# S: for each size and program, a round. COMMAND: runs every program, e.g. 'chrt -r 1' on a machine that
# has other things to do. --tiny makes everything small: it shows that the script works, and measures
# nothing; without any peer its exit status is 77 once ours have run.
#
# Needs openmpi-bin, libopenmpi-dev and libgloo-dev; what is missing is left out, and said.
# Prints medians over the rounds with their spread, ratios peer / Tandem (above 1: Tandem is faster), and
# geometric means against what we want.
set -euo pipefail
cd "$(dirname "$0")/../.."

rounds=7 seconds=0.1 build=build ranks=2,4 with='' tiny=false
sizes=4,64,1024,4096,65536,262144,1048576,4194304,16777216,67108864
while [[ $# -gt 0 ]]; do
  case "$1" in
    --rounds) rounds=$2; shift 2 ;;
    --seconds) seconds=$2; shift 2 ;;
    --build) build=$2; shift 2 ;;
    --ranks) ranks=$2; shift 2 ;;
    --sizes) sizes=$2; shift 2 ;;
    --with) with=$2; shift 2 ;;
    --tiny) tiny=true rounds=1 seconds=0.01 ranks=2 sizes=4,65536; shift ;;
    *) echo "unknown flag $1; known: --rounds --seconds --build --ranks --sizes --with --tiny" >&2; exit 2 ;;
  esac
done

if [[ ! -x $build/bin/tandem ]]; then
  echo "$build/bin/tandem is not built" >&2
  exit 2
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

mpi='' gloo=''
if command -v mpirun >/dev/null && command -v mpicxx >/dev/null; then
  mpicxx -O2 -std=c++17 -I. tests/bench/mpi_allreduce.cc -o "$work/mpi_allreduce" && mpi=yes
else
  echo "SKIPPED: Open MPI (apt-get install openmpi-bin libopenmpi-dev)"
fi
if [[ -e /usr/include/gloo/allreduce.h ]]; then
  "${CXX:-g++}" -O2 -std=c++17 -I. tests/bench/gloo_allreduce.cc -o "$work/gloo_allreduce" -lgloo -lpthread &&
    gloo=yes
else
  echo "SKIPPED: Gloo (apt-get install libgloo-dev)"
fi

note() {  # note NAME RANKS < lines of "ALGORITHM BYTES MICROSECONDS"
  while read -r algorithm bytes us; do echo "$1 $2 $bytes $us $algorithm"; done >>"$work/lines"
}

tandem_run() {  # tandem_run LINK RANKS
  $with "$build/bin/tandem" bench allreduce --link "$1" --ranks "$2" --sizes "$sizes" --seconds "$seconds" \
    --repetitions 3 --only-out-of-place --json "$work/json" >"$work/log" || { cat "$work/log" >&2; return 1; }
  python3 -c 'import json, sys
for line in open(sys.argv[1]):
    d = json.loads(line)
    print(d["algorithm"], d["bytes"], d["mean_us"])' "$work/json" | note "tandem_$1" "$2"
}

mpi_run() {  # mpi_run NAME RANKS FLAGS...
  local name=$1 p=$2 root=()
  shift 2
  [[ $(id -u) == 0 ]] && root=(--allow-run-as-root)
  $with mpirun "${root[@]}" --oversubscribe --bind-to none -np "$p" "$@" "$work/mpi_allreduce" "$sizes" "$seconds" |
    note "$name" "$p"
}

echo "machine: $(nproc) cores, $(grep -m1 'model name' /proc/cpuinfo | cut -d: -f2- | xargs)"
for ((round = 1; round <= rounds; ++round)); do
  echo "round $round of $rounds, load $(cut -d' ' -f1 /proc/loadavg)"
  for p in ${ranks//,/ }; do
    tandem_run shm "$p"
    [[ -z $mpi ]] || mpi_run mpi_shm "$p"
    tandem_run tcp "$p"
    [[ -z $mpi ]] || mpi_run mpi_tcp "$p" --mca btl self,tcp --mca pml ob1
    [[ -z $gloo ]] || $with "$work/gloo_allreduce" "$sizes" "$seconds" "$p" | note gloo "$p"
  done
done

python3 tests/bench/compare_peers.py "$work/lines"
if $tiny && [[ -z $mpi && -z $gloo ]]; then
  echo "SKIPPED ENTIRELY: there is no peer to compare with"
  exit 77
fi
