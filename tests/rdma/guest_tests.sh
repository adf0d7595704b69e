#!/bin/bash
# The tests that need an RDMA device, one after the other; run_in_guest.sh starts this.
#
#   tests/rdma/guest_tests.sh FOLDER quick   conformance over one device (peers that die among it), broken queue pairs,
#                                            links of collectives; if TANDEM_DRAW is set, also an eighth of the tests of
#                                            two devices or of lost packets, drawn by that number
#   tests/rdma/guest_tests.sh FOLDER all     all of them, over one device, two, and two that lose packets
#
# FOLDER: the test programs. What needs a network that only a guest has is left out, and named, on a
# machine with a device of its own. Exit status: 1 if a program failed, or found no device.
set -u
here=$(dirname "$(readlink -f "$0")")
folder=$1 which=$2
failed=()

run() {  # run NAME PROGRAM [ARG...]
  local name=$1 program=$folder/$2 log status start=$SECONDS
  shift 2
  log=$(mktemp)
  # Without the right to lock memory beyond the limit, which tests lower.
  setpriv --bounding-set=-ipc_lock --inh-caps=-ipc_lock \
    timeout --kill-after 5 "${TANDEM_TEST_SECONDS:-1200}" "$program" "$@" >"$log" 2>&1
  status=$?
  grep -q 'SKIPPED ENTIRELY' "$log" && status="no device"
  printf '%s: %s, %d s; %s\n' "$name" "$([[ $status == 0 ]] && echo ok || echo "FAILED ($status)")" \
    $((SECONDS - start)) "$(grep -aE '^\[  (PASSED|SKIPPED) ' "$log" | tr -s ' \n' ' ')"
  if [[ $status != 0 ]]; then
    tail -n 60 "$log"
    failed+=("$name")
  fi
  rm -f "$log"
}

network() {  # network NAME: false where it cannot be made
  if [[ -z ${TANDEM_GUEST_SHARED-} ]]; then
    printf 'not here, on a device that is real: what needs the network "%s"\n' "$1"
    return 1
  fi
  source "$here/guest_network.sh" "$1" || { failed+=("network $1"); return 1; }
}

over_pair() {
  run "conformance, two devices" transport_conformance_test '--gtest_filter=Rdma/*'
  run "faults, two devices" rdma_fault_test '--gtest_filter=-*ALinkThatGoesDown*'
  run "links, two devices" collective_wire_test '--gtest_filter=*/Rdma'
  run "fallback, two devices" rdma_fallback_test
}

over_lossy() {
  run "conformance, packets lost" transport_conformance_test '--gtest_filter=Rdma/*'
  # Faults have deadlines of their own, which losses can use up: not with every commit.
  [[ $which == quick ]] || run "faults, packets lost" rdma_fault_test '--gtest_filter=-*ALinkThatGoesDown*'
  run "links, packets lost" collective_link_test '--gtest_filter=*BytesArriveWhole*/Rdma:*TheEndIsSeen*/Rdma'
  run "fallback, packets lost" rdma_fallback_test
}

if [[ $which == quick ]]; then
  run conformance transport_conformance_test '--gtest_filter=Rdma/*'
  run faults rdma_fault_test '--gtest_filter=*KilledWithWrites*:*AQueuePairInError*'
  run links collective_link_test '--gtest_filter=*/Rdma-*SleepersAreWoken*'
  run 'links, ranks killed' collective_fault_test '--gtest_filter=*IsNamedOverRdma/0'
  if [[ -n ${TANDEM_DRAW-} ]]; then
    networks=(pair lossy)
    export GTEST_TOTAL_SHARDS=8 GTEST_SHARD_INDEX=$((TANDEM_DRAW / 2 % 8))
    drawn=${networks[TANDEM_DRAW % 2]}
    if network "$drawn"; then "over_$drawn"; fi
  fi
else
  run conformance transport_conformance_test '--gtest_filter=Rdma/*'
  [[ ! -x $folder/rdma_job_test ]] || run jobs rdma_job_test
  [[ ! -x $folder/kill_test ]] || run 'processes killed' kill_test '--gtest_filter=Rdma/*'
  run faults rdma_fault_test '--gtest_filter=-*ALinkThatGoesDown*'
  run links collective_link_test '--gtest_filter=*/Rdma'
  run 'links, steady state' collective_link_alloc_test '--gtest_filter=*OverRdma*'
  run 'links, long vectors' collective_wire_test '--gtest_filter=*/Rdma'
  run 'links, how they are made' collective_coordinator_test '--gtest_filter=*FramedStranger*/Rdma:*RdmaBetweenHosts*'
  # Apart: children cannot use a device that their parent has used.
  run 'links, ranks that go' collective_coordinator_test '--gtest_filter=*FateTest*Rdma'
  run 'links, ranks that go in the middle' collective_fault_test '--gtest_filter=*IsNamedOverRdma*'
  # Soft-RoCE needs a new device after its link was down (docs/RDMA.md).
  if network one; then run 'link down' rdma_fault_test '--gtest_filter=*ALinkThatGoesDown*'; fi
  if network one; then run fallback rdma_fallback_test; fi
  if network pair; then over_pair; fi
  if network lossy; then over_lossy; fi
fi
[[ ${#failed[@]} -eq 0 ]]
