#!/usr/bin/env bash
# tandem doctor beside an RDMA device, healthy and broken for real: in the guest of run_in_guest.sh, whose
# network it breaks. `tests/rdma/run_in_guest.sh --net one tests/rdma/doctor_in_guest.sh PROGRAM JOB`
#
# Prints what was not as it should be; exit status 0 if nothing.
set -uo pipefail
tandem=$1 job=$2
if [[ -z ${TANDEM_RDMA_LINK-} || -z ${TANDEM_RDMA_HOSTS-} ]]; then
  echo "SKIPPED ENTIRELY: there is no link here that tests may take down"
  exit 77
fi
device=$TANDEM_RDMA_LINK
host=${TANDEM_RDMA_HOSTS%%,*}
failures=0

# expect STATUS TEXT... : of the last doctor.
expect() {
  local status=$1 text
  shift
  if [[ $code -ne $status ]]; then echo "exit status $code, not $status"; failures=$((failures + 1)); fi
  for text in "$@"; do
    grep -q -- "$text" <<<"$said" || { echo "does not say: $text"; failures=$((failures + 1)); }
  done
  if [[ $failures -gt 0 ]]; then printf '%s\n' "$said"; exit 1; fi
}
# doctor ARGUMENT... : of the job, with RDMA alone; on one line.
doctor() {
  said=$("${with[@]}" "$tandem" doctor "$job" --set cluster.transport=RDMA --workers 0 --servers 1 "$@" 2>&1)
  code=$?
  said=$(tr -s '\n ' '  ' <<<"$said")
}
with=()
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

echo "two that reach each other by RDMA"
"$tandem" doctor "$job" --set cluster.transport=RDMA --workers 0 --listen "$host:7900" 2>"$scratch/listener" &
listener=$!
for ((i = 0; i < 600; ++i)); do grep -q listening "$scratch/listener" && break; sleep 0.1; done
doctor --peer "$host:7900"
kill "$listener"
expect 0 'GID [0-9]* '"$host"' on '"$device" 'RDMA endpoint made on' 'transport RDMA, round trip' 'clock its clock is'

echo "little locked memory"
with=(bash -c 'ulimit -l 64; exec setpriv --bounding-set -ipc_lock --inh-caps -ipc_lock "$@"' limited)
doctor
expect 1 'problem locked memory .*the limit is 65.5 kB'
with=()

echo "a small MTU"
ip link set "$device" mtu 1500
doctor
expect 0 'warning RDMA .* MTU 1024' 'ip link set DEVICE mtu 9000'

echo "no address"
ip addr flush dev "$device"
doctor
expect 1 'problem RDMA .*no RoCE v2 GID that belongs to an IPv4 address'

echo "a device that is down"
ip link set "$device" down
doctor
expect 1 'problem RDMA .*the port is not active'
echo "all as it should be"
