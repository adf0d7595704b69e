#!/usr/bin/env bash
# Push and pull of random rows between two ends on this machine: Tandem through shared memory beside
# PyTorch RPC (TensorPipe, which uses shared memory between processes of a host). They take turns, round by
# round. Needs python3-torch; the Tandem side needs a build.
#
#   tests/bench/pushpull_vs_torch_rpc.sh [--rounds N] [--trips N] [--build DIR] [--tiny]
#
# 1 worker, 1 shard, 1 M rows of 16 floats, row-wise Adagrad, distinct keys of a request. The two sides do not
# do the same work: Tandem's keys are any 64-bit numbers, which its store hashes, and its client puts rows in
# the caller's order; PyTorch's ids are the numbers of rows of a dense tensor. PyTorch runs with one thread a
# process and with two, and the faster of both counts in each round.
# Prints for each size medians over the rounds in microseconds, and the ratio PyTorch / Tandem: median and
# spread of the rounds' ratios, against what we want (1.5).
# --tiny makes everything small: it shows that the script works, and measures nothing. Without PyTorch: status 77.
set -euo pipefail
cd "$(dirname "$0")/../.."

rounds=5 trips=60 build=build rows=1000000 keys='10000 50000'
while [[ $# -gt 0 ]]; do
  case "$1" in
    --rounds) rounds=$2; shift 2 ;;
    --trips) trips=$2; shift 2 ;;
    --build) build=$2; shift 2 ;;
    --tiny) rounds=1 trips=2 rows=2000 keys='10 500'; shift ;;
    *) echo "unknown flag $1; known: --rounds N --trips N --build DIR --tiny" >&2; exit 2 ;;
  esac
done

python=${PYTHON:-/usr/bin/python3}
if ! "$python" -c 'import torch.distributed.rpc as rpc; assert rpc.is_available()' 2>/dev/null; then
  echo "SKIPPED ENTIRELY: PyTorch with RPC is missing: apt-get install python3-torch"
  exit 77
fi
# The OpenMP build of OpenBLAS shares PyTorch's threads; the other one fights with them.
openmp=$(echo /usr/lib/*/openblas-openmp)
[[ ! -d $openmp ]] || export LD_LIBRARY_PATH=$openmp${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}

results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT

# A port that was free a moment ago.
free_port() {
  "$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

torch_rpc() {  # torch_rpc ROUND THREADS
  # shellcheck disable=SC2086
  "$python" tests/bench/pushpull_torch_rpc.py --rows "$rows" --keys $keys --trips "$trips" \
    --threads "$2" --port "$(free_port)" 2>"$results/torch.err" |
    sed "s/^/$1 torch /" >>"$results/all" || { cat "$results/torch.err" >&2; return 1; }
}

tandem() {  # tandem ROUND
  # shellcheck disable=SC2086
  "$build/bin/tandem" bench pushpull --transport shm --rows "$rows" --keys $keys --repetitions 2 \
    --trips "$trips" >"$results/tandem"
  awk -v round="$1" '$2 == "copied" { print round, "tandem", $1, $4, $5 }' "$results/tandem" \
    >>"$results/all"
}

uptime
for ((round = 0; round < rounds; ++round)); do
  tandem "$round"
  torch_rpc "$round" 1
  torch_rpc "$round" 2
done
uptime

"$python" - "$results/all" <<'PYTHON'
import statistics
import sys

best = {}  # (kind, keys) -> round -> side -> microseconds
for line in open(sys.argv[1]):
    round_, side, kind, keys, us = line.split()
    sides = best.setdefault((kind, int(keys)), {}).setdefault(round_, {})
    sides[side] = min(float(us), sides.get(side, float("inf")))
if not best or any(len(sides) != 2 for rounds in best.values() for sides in rounds.values()):
    sys.exit("a side has said nothing")
print(f"{'':4} {'keys':>7} {'Tandem us':>10} {'PyTorch us':>11}   PyTorch / Tandem (1.5 wanted)")
for (kind, keys), rounds in sorted(best.items(), key=lambda item: (item[0][1], item[0][0])):
    ours, theirs = ([sides[side] for sides in rounds.values()] for side in ("tandem", "torch"))
    ratios = [t / o for t, o in zip(theirs, ours)]
    print(f"{kind:4} {keys:7} {statistics.median(ours):10.1f} {statistics.median(theirs):11.1f}   "
          f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}, {len(ratios)} rounds)")
PYTHON
