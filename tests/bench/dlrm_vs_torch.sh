#!/usr/bin/env bash
# DLRM on this machine, Tandem beside PyTorch: interleaved, so that both sides see the same moods of the
# machine. Needs python3-torch (and libopenblas0-openmp, PyTorch's best BLAS here); the Tandem side needs
# a build.
#
#   tests/bench/dlrm_vs_torch.sh [--rounds N] [--steps N] [--build DIR] [--tiny]
#
# One round runs, in turn: PyTorch in one process with two threads (Adagrad, SGD); PyTorch
# DistributedDataParallel on the MLPs alone in two processes; Tandem with BSP; with asynchronous tables
# and a synchronous dense part (hybrid); with SSP(4) and with ASP for tables and dense parameters alike.
# Then a table: name, rounds, samples/s min, median, max.
#
# The two sides do not do the same work: PyTorch trains on batches that were prepared in memory before
# its clock starts, in tables of 100,000 rows each; Tandem reads, parses and hashes a text file
# (out/data/dlrm_bench, made if it is missing), keeps its rows in hash tables of other processes, and its
# first steps count. PyTorch warms up.
# --tiny makes everything small: it shows that the script works, and measures nothing. Without PyTorch it
# runs our side alone, and its exit status is 77.
set -euo pipefail
cd "$(dirname "$0")/../.."

rounds=5 steps=100 build=build batch=2048 tiny=false data=out/data/dlrm_bench rows=600000
while [[ $# -gt 0 ]]; do
  case "$1" in
    --rounds) rounds=$2; shift 2 ;;
    --steps) steps=$2; shift 2 ;;
    --build) build=$2; shift 2 ;;
    --tiny) tiny=true rounds=1 steps=2 batch=64 rows=500; shift ;;
    *) echo "unknown flag $1; known: --rounds N --steps N --build DIR --tiny" >&2; exit 2 ;;
  esac
done

python=${PYTHON:-/usr/bin/python3} torch=true
if ! "$python" -c 'import torch' 2>/dev/null; then
  echo "SKIPPED: PyTorch is missing: apt-get install python3-torch libopenblas0-openmp"
  $tiny || exit 2
  torch=false
fi

results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
$tiny && data=$results/data

# The OpenMP build of OpenBLAS shares PyTorch's threads; the other one fights with them.
openmp=$(echo /usr/lib/*/openblas-openmp)
if [[ -d $openmp ]]; then
  export LD_LIBRARY_PATH=$openmp${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
else
  echo "note: without libopenblas0-openmp PyTorch is slower than it could be"
fi
unset OPENBLAS_NUM_THREADS

# OpenBLAS takes slow kernels on a processor that it does not know: give PyTorch the best ones.
best_core='' best_speed=0
candidates=()
$torch && candidates=('')
$torch && grep -q -w avx2 /proc/cpuinfo && candidates+=(Haswell)
$torch && grep -q -w avx512f /proc/cpuinfo && candidates+=(SkylakeX)
for core in ${candidates[@]+"${candidates[@]}"}; do
  speed=$(env ${core:+OPENBLAS_CORETYPE=$core} "$python" tests/bench/dlrm_torch.py --mode probe)
  echo "OpenBLAS kernels ${core:-of its own choice}: $speed GFLOP/s"
  if awk "BEGIN { exit !($speed > 1.05 * $best_speed) }"; then best_core=$core best_speed=$speed; fi
done

torch_run() {
  $torch || return 0
  env ${best_core:+OPENBLAS_CORETYPE=$best_core} "$python" tests/bench/dlrm_torch.py \
    --steps "$steps" --batch "$batch" --repetitions 1 "$@" | tee -a "$results/lines"
}

tandem_run() {  # name, then flags of `tandem run`
  local name=$1 out="$results/out"
  shift
  rm -rf "$out"
  "$build/bin/tandem" run configs/dlrm_bench.textproto --set "data.train=[\"$data/train.tsv\"]" \
    --out "$out" --no-checkpoint "$@" >"$results/log" 2>&1 ||
    { cat "$results/log" >&2; return 1; }
  "$python" - "$name" "$out/summary.json" <<'PY' | tee -a "$results/lines"
import json, sys
rate = json.load(open(sys.argv[2]))["samples_per_second"]
print(json.dumps({"name": sys.argv[1], "samples_per_second": rate}))
PY
}

if [[ -x $build/bin/tandem && ! -e $data/train.tsv ]]; then
  "$build/bin/tandem" datagen --out "$data" --train-rows "$rows" --test-rows 1000
fi

echo "machine: $(nproc) cores, $(grep -m1 'model name' /proc/cpuinfo | cut -d: -f2- | xargs)"
for ((round = 1; round <= rounds; ++round)); do
  echo "round $round of $rounds, load $(cut -d' ' -f1 /proc/loadavg)"
  torch_run --mode single --optimizer adagrad
  torch_run --mode single --optimizer sgd
  torch_run --mode ddp_mlp --optimizer adagrad
  if [[ -x $build/bin/tandem ]]; then
    sizes=()
    $tiny && sizes=(--set train.batch_size=64 --set train.max_steps=2)
    tandem_run tandem_bsp "${sizes[@]}"
    tandem_run tandem_hybrid --set policy.kind=ASP --set train.prefetch_steps=1 "${sizes[@]}"
    tandem_run tandem_ssp_4 --set 'policy={kind: SSP bound: 4}' "${sizes[@]}"
    tandem_run tandem_asp --set policy.kind=ASP --set dense.synchroniser=SERVERS "${sizes[@]}"
  else
    echo "note: $build/bin/tandem is not built; only PyTorch is measured"
  fi
done

"$python" - "$results/lines" <<'PY'
import json, statistics, sys
rates = {}
for line in open(sys.argv[1]):
    entry = json.loads(line)
    rates.setdefault(entry["name"], []).append(entry["samples_per_second"])
print(f"{'name':34} {'rounds':>6} {'min':>10} {'median':>10} {'max':>10}")
for name, values in rates.items():
    print(f"{name:34} {len(values):6} {min(values):10.0f} {statistics.median(values):10.0f} "
          f"{max(values):10.0f}")
bars = {"single_2_threads_adagrad": 1.0, "ddp_2_mlps_only_adagrad": 0.75}
for ours in [name for name in rates if name.startswith("tandem")]:
    for theirs, want in bars.items():
        if "torch_" + theirs not in rates:
            continue
        ratio = statistics.median(rates[ours]) / statistics.median(rates["torch_" + theirs])
        print(f"{ours} / torch_{theirs}: {ratio:.2f} (at least {want})")
PY
$torch || { echo "SKIPPED ENTIRELY: there is no PyTorch to compare with"; exit 77; }
