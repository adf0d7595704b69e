#!/bin/bash
# Builds and runs every GPU check and benchmark in one call, from a source tree, offline: it needs
# nvcc, its host compiler and nothing else (no CMake, Abseil, Protobuf or GoogleTest).
#   tests/bench/gpu.sh            checks, compute-sanitizer, benchmarks
#   tests/bench/gpu.sh --checks   checks alone
#   tests/bench/gpu.sh --tiny     checks on small vectors, built without optimisation in a folder that goes:
#                                 shows that the script works
# Results go to $OUT (default: build-gpu): gpu_checks.json, gpu_bench.json and the logs. NCCL is used
# if it lies beside CUDA, in $NCCL_HOME, or in Python's packages. Exits with 0 if nothing failed, 77
# if there is no device (the program is built, and what runs on the host is checked), or no nvcc for --tiny.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."

[[ $# -eq 0 || $1 == --checks || $1 == --tiny ]] || { sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 2; }
optimise=-O3 small=() DIR=build-gpu
if [[ ${1-} == --tiny ]]; then
  optimise=-O0 small=(--small) DIR=$(mktemp -d)
  trap 'rm -rf "$DIR"' EXIT
fi
readonly DIR RESULTS=${OUT:-$DIR}
mkdir -p "$DIR" "$RESULTS"

find_nvcc() {
  local candidate
  for candidate in "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" "$(command -v nvcc || true)"; do
    [[ -x $candidate ]] && { echo "$candidate"; return; }
  done
  echo "SKIPPED ENTIRELY: no nvcc in \$CUDA_HOME, /usr/local/cuda or \$PATH" >&2
  [[ ${small[*]-} ]] && exit 77
  exit 2
}

find_nccl() {
  local python candidate
  python=$(python3 -c 'import nvidia.nccl; print(list(nvidia.nccl.__path__)[0])' 2>/dev/null || true)
  for candidate in "${NCCL_HOME:-}" "$CUDA" "$python"; do
    [[ -n $candidate && -f $candidate/include/nccl.h && -e $candidate/lib/libnccl.so.2 ]] &&
      { echo "$candidate"; return; }
  done
  return 0
}

NVCC=$(find_nvcc)
CUDA=$(dirname "$(dirname "$(readlink -f "$NVCC")")")
NCCL=$(find_nccl)
readonly NVCC CUDA NCCL

sources=(collectives/cuda/{device_reduce.cu,ipc_allreduce.cc,ipc_memory.cc,ipc_barrier.cc}
  collectives/cuda/{staged_allreduce,two_level_sum}.cc collectives/reduce_kernels.cc collectives/reduce_base.cc
  tests/cuda/{gpu_bench.cc,gpu_checks.cc,gpu_data.cc,gpu_main.cc,nccl_allreduce.cc,processes.cc,thread_peers.cc})
flags=(-std=c++20 "$optimise" -fmad=false -I. -Xcompiler=-ffp-contract=off
  -gencode "arch=compute_80,code=[sm_80,sm_90,compute_80]")  # cmake/Cuda.cmake says why
oldest=$("$NVCC" --list-gpu-arch | grep -m 1 -o '7[05]$' || true)
[[ -z $oldest ]] || flags+=(-gencode "arch=compute_$oldest,code=sm_$oldest")
link=(-lpthread -lrt)
if [[ $(uname -m) == x86_64 ]]; then
  sources+=(collectives/reduce_avx2.cc collectives/reduce_avx512.cc)
fi
if [[ -n $NCCL ]]; then
  flags+=(-DTANDEM_HAVE_NCCL "-I$NCCL/include")
  link+=("-L$NCCL/lib" -l:libnccl.so.2 -Xlinker "-rpath=$NCCL/lib")
fi

object() { echo "$DIR/$(basename "$1").o"; }

compile() {
  local extra=()
  case $1 in
    *_avx2.cc) extra=(-Xcompiler=-mavx2,-mf16c) ;;
    *_avx512.cc) extra=(-Xcompiler=-mavx2,-mf16c,-mavx512f,-mavx512bw,-mavx512dq,-mavx512vl
                        -Xcompiler=-mprefer-vector-width=512) ;;
  esac
  "$NVCC" "${flags[@]}" "${extra[@]}" -c "$1" -o "$(object "$1")"
}

build() {
  local source objects=() jobs=()
  for source in "${sources[@]}"; do
    objects+=("$(object "$source")")
    while [[ $(jobs -rp | wc -l) -ge $(nproc) ]]; do wait -n; done
    compile "$source" &
    jobs+=($!)
  done
  for job in "${jobs[@]}"; do wait "$job" || return 1; done
  "$NVCC" "${objects[@]}" "${link[@]}" -o "$DIR/gpu_check"
}

failed=0
# stage NAME COMMAND...: runs it for at most four minutes, keeps its output, counts a failure.
stage() {
  local name=$1 code=0
  shift
  printf '\n=== %s\n' "$name"
  timeout --kill-after=10 240 "$@" 2>&1 | tee "$RESULTS/${name// /_}.log" || code=${PIPESTATUS[0]}
  [[ $code -eq 0 || $code -eq 77 ]] || { failed=$((failed + 1)); echo "=== $name: FAILED ($code)"; }
  return 0
}

# sanitize TOOL WHAT CHECK...: small vectors, as every access is checked. Several ranks are processes
# of their own, which the tool is told to follow; one rank runs in the process that it starts.
sanitize() {
  local tool=$1 what=$2
  shift 2
  local log="$RESULTS/sanitizer_${tool}_$what.log" code=0
  timeout --kill-after=10 240 "$SANITIZER" --tool "$tool" --target-processes all --error-exitcode 9 \
    "$DIR/gpu_check" --small "$@" >"$log" 2>&1 || code=$?
  local outcome=clean
  if [[ $code -eq 124 || $code -eq 137 ]]; then
    outcome="did not end within four minutes: no verdict"
  elif ! grep -q 'ERROR SUMMARY' "$log"; then
    outcome="did not run: $(grep -m1 -i -E 'error|not supported' "$log" || tail -n 1 "$log")"
  elif [[ $code -ne 0 ]]; then
    outcome="FAILED ($code): $(grep -m1 -E 'Invalid|Uninit|hazard|FAILED|ERROR SUMMARY' "$log")"
    failed=$((failed + 1))
  fi
  printf '%-12s %-10s %s\n' "$tool" "$what" "$outcome"
}

sanitizers() {
  printf '\n=== compute-sanitizer\n'
  SANITIZER=$(command -v compute-sanitizer || true)
  [[ -n $SANITIZER ]] || SANITIZER=$CUDA/bin/compute-sanitizer
  [[ -x $SANITIZER ]] || { echo "skipped: not installed"; return; }
  local tool
  for tool in memcheck initcheck racecheck synccheck; do
    TANDEM_GPU_INLINE=1 sanitize "$tool" kernel device_fold
  done
  TANDEM_GPU_INLINE=1 sanitize memcheck staged staged staged_order staged_fails
  sanitize memcheck ipc ipc ipc_blocks ipc_order
}

printf '=== build\n%s\nNCCL: %s\n' "$("$NVCC" --version | tail -n 2 | head -n 1)" "${NCCL:-none}"
build || { echo "the build failed"; exit 1; }
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null ||
  echo "no nvidia-smi"

stage checks "$DIR/gpu_check" ${small[@]+"${small[@]}"} --json="$RESULTS/gpu_checks.json"
if grep -q '^no device' "$RESULTS/checks.log"; then
  [[ $failed -eq 0 ]] && exit 77
  exit 1
fi
if [[ $# -eq 0 ]]; then
  stage benchmarks "$DIR/gpu_check" --bench --json="$RESULTS/gpu_bench.json"
  sanitizers
fi
printf '\n%s failed\n' "$failed"
[[ $failed -eq 0 ]]
