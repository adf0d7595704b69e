#!/usr/bin/env bash
# How much of the dense gradient's way to the other worker is hidden behind the backward pass, over
# a link of 1 Gbit/s: two workers in network namespaces of their own, joined by a veth pair with a
# token bucket at each end. Needs root, ip and tc (iproute2), and out/data/quickstart (./quickstart makes it);
# where something is missing, its exit status is 77.
#
#   tests/bench/overlap.sh [--rate 1gbit] [--build build] [--out DIR] [--rounds 3] [--tiny]
#
# --tiny makes everything small, data too: it shows that the script works, and measures nothing.
#
# Prints, per round and worker, the time of all buckets, the part of it during which the worker was
# computing, and their ratio (trace_overlap.py).
set -euo pipefail
cd "$(dirname "$0")/../.."
rate=1gbit build=build out= rounds=3 data=out/data/quickstart tiny=false
while [[ $# -gt 0 ]]; do
  case $1 in
    --rate) rate=$2; shift 2 ;;
    --build) build=$2; shift 2 ;;
    --out) out=$2; shift 2 ;;
    --rounds) rounds=$2; shift 2 ;;
    --tiny) tiny=true; shift ;;
    *) echo "usage: $0 [--rate 1gbit] [--build build] [--out DIR] [--rounds 3] [--tiny]" >&2; exit 2 ;;
  esac
done
skip() { echo "SKIPPED ENTIRELY: $1"; exit 77; }
[[ $EUID -eq 0 ]] && command -v tc >/dev/null && ip netns list >/dev/null || skip "needs root, ip and tc"
$tiny && out=
out=${out:-$(mktemp -d)}
mkdir -p "$out"
job=(--job configs/overlap_bench.textproto)
if $tiny; then
  rounds=1 data=$out/data
  "$build/bin/tandem" datagen --out "$data" --train-rows 200 --test-rows 1
  job+=(--set train.batch_size=8 --set 'model={mlp {hidden: [16, 16]}}' --set dense.bucket_bytes=512)
fi
[[ -f $data/train.tsv ]] || skip "no $data; run ./quickstart first"
job+=(--set "data.train=[\"$data/train.tsv\"]")
a=tandem-overlap-$$-a b=tandem-overlap-$$-b
cleanup() {
  kill $(jobs -p) 2>/dev/null || true
  wait 2>/dev/null || true
  ip netns delete $a 2>/dev/null || true
  ip netns delete $b 2>/dev/null || true
  if $tiny; then rm -rf "$out"; fi
}
trap cleanup EXIT
ip netns add $a 2>/dev/null || skip "no network namespace can be made here"
ip netns add $b
ip link add eth0 netns $a type veth peer name eth0 netns $b
for end in "$a 10.78.1.1" "$b 10.78.1.2"; do
  read -r space address <<<"$end"
  ip -n "$space" addr add "$address/24" dev eth0
  ip -n "$space" link set eth0 up
  ip -n "$space" link set lo up
  ip netns exec "$space" tc qdisc add dev eth0 root tbf rate "$rate" burst 256kb latency 50ms
done
for ((round = 1; round <= rounds; ++round)); do
  dir=$out/round-$round
  mkdir -p "$dir"
  TANDEM_TOKEN=$(od -An -tx1 -N32 /dev/urandom | tr -d ' \n')
  export TANDEM_TOKEN
  ip netns exec $a "$build/bin/tandem-scheduler" "${job[@]}" --bind 'tcp://10.78.1.1:*' \
    --out "$dir" --overwrite --no-checkpoint >"$dir/scheduler.txt" 2>"$dir/scheduler.log" &
  scheduler=$!
  for _ in $(seq 100); do grep -q '"address"' "$dir/scheduler.txt" && break; sleep 0.1; done
  address=$(sed -n 's/.*"address":"\([^"]*\)".*/\1/p' "$dir/scheduler.txt" | head -1)
  ip netns exec $a "$build/bin/tandem-server" "${job[@]}" --scheduler "$address" --index 0 \
    --bind 'tcp://10.78.1.1:*' --out "$dir" 2>"$dir/server.log" &
  for w in 0 1; do
    space=$a host=10.78.1.1
    [[ $w -eq 1 ]] && space=$b host=10.78.1.2
    OMP_NUM_THREADS=1 ip netns exec $space "$build/bin/tandem-worker" "${job[@]}" \
      --scheduler "$address" --index $w --bind "tcp://$host:*" --trace "$dir/trace-$w.json" \
      --trace-steps 12 2>"$dir/worker-$w.log" &
  done
  wait $scheduler || { cat "$dir"/*.log; exit 1; }
  wait
  python3 tests/bench/trace_overlap.py --skip 2 "$dir/trace-0.json" "$dir/trace-1.json"
done
$tiny || echo "traces in $out"
