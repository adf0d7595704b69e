#!/usr/bin/env bash
# What is lost, or is not, by how dense gradients are summed: one job by every algorithm, wire type
# and codec, in buckets, and with a sharded optimizer, each beside the plain run (DIRECT, F32, at
# once). The job must evaluate: its loss, AUC or hit rate are compared.
#
#   tests/bench/collective_matrix.sh JOB [--build build] [--out DIR] [--only REGEX] [--set PATH=VALUE]...
#
# Prints a table: seconds, what the evaluation gave, and the difference from the plain run. Exit status 1
# if a run failed.
set -euo pipefail
cd "$(dirname "$0")/../.."
build=build out= only=. job= set=()
while [[ $# -gt 0 ]]; do
  case $1 in
    --build) build=$2; shift 2 ;;
    --out) out=$2; shift 2 ;;
    --only) only=$2; shift 2 ;;
    --set) set+=(--set "$2"); shift 2 ;;
    -*) echo "usage: $0 JOB [--build build] [--out DIR] [--only REGEX] [--set PATH=VALUE]..." >&2; exit 2 ;;
    *) job=$1; shift ;;
  esac
done
[[ -n $job ]] || { echo "$0: which job?" >&2; exit 2; }
out=${out:-$(mktemp -d)}
mkdir -p "$out"

# NAME, then --set values that make it; the plain run first.
variants=(
  "plain|dense.algorithm=DIRECT dense.bucket_bytes=-1"
  "auto|dense.algorithm=AUTO"
  "ring|dense.algorithm=RING"
  "one_shot|dense.algorithm=ONE_SHOT"
  "recursive_doubling|dense.algorithm=RECURSIVE_DOUBLING"
  "halving_doubling|dense.algorithm=HALVING_DOUBLING"
  "double_tree|dense.algorithm=DOUBLE_TREE"
  "swing|dense.algorithm=SWING"
  "naive|dense.algorithm=NAIVE"
  "hierarchical|dense.algorithm=HIERARCHICAL"
  "buckets|dense.algorithm=DIRECT dense.bucket_bytes=16384"
  "wire_bf16|dense.algorithm=DIRECT dense.wire_dtype=BF16"
  "wire_f16|dense.algorithm=DIRECT dense.wire_dtype=F16"
  "codec_top_k|dense.codec={kind:TOP_K,fraction:0.1}"
  "codec_sign|dense.codec={kind:SIGN}"
  "codec_power_sgd|dense.codec={kind:POWER_SGD,rank:2}"
  "sharded_optimizer|dense.sharded_optimizer=true"
  "link_tcp|dense.algorithm=DIRECT dense.link=TCP"
)

for variant in "${variants[@]}"; do
  name=${variant%%|*}
  [[ $name == plain || $name =~ $only ]] || continue
  own=()
  for pair in ${variant#*|}; do own+=(--set "$pair"); done
  if ! nice "$build/bin/tandem" run "$job" --out "$out/$name" --overwrite --no-checkpoint ${set[@]+"${set[@]}"} "${own[@]}" \
      >"$out/$name.log" 2>&1; then
    tail -1 "$out/$name.log" >&2
  fi
  echo "$name"
done >"$out/names"

python3 tests/bench/collective_matrix.py "$out" "$(uptime)"
