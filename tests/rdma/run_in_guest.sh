#!/bin/bash
# Runs a command where there is an RDMA device.
#
#   tests/rdma/run_in_guest.sh [--net one|pair|lossy] [--seconds N] [--cpus N] [--memory MIB]
#                              [--clock steps|wall] COMMAND [ARG...]
#
# On a machine with an RDMA device of its own whose port is active, that is simply here. Elsewhere it is
# a small QEMU guest: Debian's kernel with Soft-RoCE (rdma_rxe), and this machine's files under a layer of
# memory, so that the command finds all it finds here and changes nothing but what lies under
# TANDEM_GUEST_SHARED, a folder that both see. The command is root, has this environment and this folder,
# and TANDEM_RDMA_HOSTS lists the addresses that have a device:
#   one    one device                              192.0.2.1
#   pair   two devices, joined by a veth pair      10.9.0.1,10.9.0.2
#   lossy  the same, losing 1 % of all packets, with 0.5 ms of delay
# `source tests/rdma/guest_network.sh NET` changes the network in a guest that runs.
#
# An emulated processor that waits for a real one while its clock goes on misses every deadline: the kernel
# takes its own timers for broken, and connections are given up. So the guest's clock counts instructions
# (--clock steps), however long they take; with that QEMU starts one processor only. For measurements, and
# with --cpus 2 for what only happens side by side, it is the wall's (--clock wall).
#
# Exit status: the command's. 77: something is missing, and what; 124: out of time; 125: the guest failed.
# TANDEM_GUEST_KERNEL: a folder with an unpacked linux-image package (default: .cache/guest-kernel of the
# tree, see fetch_guest_kernel.sh; else this machine's own). TANDEM_GUEST=always: a guest even beside a device.
set -u
here=$(dirname "$(readlink -f "$0")")
cache=$here/../../.cache
net=one seconds=300 cpus= memory=3072 clock=steps
usage() { sed -n '2,26s/^# \{0,1\}//p' "$0" >&2; exit 125; }
while [[ ${1-} == --* ]]; do
  case $1 in
    --net) net=$2 ;;
    --seconds) seconds=$2 ;;
    --cpus) cpus=$2 ;;
    --memory) memory=$2 ;;
    --clock) clock=$2 ;;
    *) usage ;;
  esac
  shift 2
done
[[ $# -gt 0 ]] || usage
: "${cpus:=$([[ $clock == wall ]] && echo 2 || echo 1)}"

# A real device: the tests find its address in its GID table. Loss can only be made in a guest.
if [[ ${TANDEM_GUEST-} != always && $net == one ]] && grep -qs ACTIVE /sys/class/infiniband/*/ports/*/state; then
  exec "$@"
fi

# ---- what is needed ----

missing=()
need() { type -P "$1" >/dev/null || missing+=("$2"); }
need qemu-system-x86_64 qemu-system-x86
need busybox busybox-static
need cpio cpio
need modprobe kmod
need xz xz-utils
need rdma iproute2
need setpriv util-linux
[[ -e /etc/libibverbs.d/rxe.driver ]] || missing+=(ibverbs-providers)
kernel=
for tree in "${TANDEM_GUEST_KERNEL-}" "$cache/guest-kernel" /; do
  [[ -n $tree ]] || continue
  for driver in "${tree%/}"/lib/modules/*/kernel/drivers/infiniband/sw/rxe/rdma_rxe.ko*; do
    [[ -e $driver ]] && { kernel=$(realpath "$tree") version=${driver#*/lib/modules/} version=${version%%/*}; }
  done
  [[ -z $kernel ]] || break
done
[[ -n $kernel ]] || missing+=("linux-image-amd64 (or tests/rdma/fetch_guest_kernel.sh)")
if [[ ${#missing[@]} -gt 0 ]]; then
  printf 'run_in_guest: needs an RDMA device, or these Debian packages: %s\n' "$(IFS=,; echo "${missing[*]}")" >&2
  exit 77
fi

# ---- what it boots: made once, then kept beside the kernel ----

scratch=$(mktemp -d)
qemu=
finish() {
  [[ -z $qemu ]] || { kill "$qemu" && wait "$qemu"; } 2>/dev/null
  rm -rf "$scratch"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
mkdir -p "$scratch/door/shared"

make_boot() {  # make_boot FOLDER: the kernel and an initial file system with its drivers
  local number=1000 verb file name start image=${kernel%/}/boot/vmlinuz-$version
  [[ -e ${kernel%/}/lib/modules/$version/modules.dep ]] || depmod -b "$kernel" "$version" || return
  mkdir -p "$1/files/bin" "$1/files/modules"
  cp "$(type -P busybox)" "$1/files/bin/busybox"
  cp "$here/guest_init.sh" "$1/files/init"
  chmod +x "$1/files/init"
  # The modules with all they depend on, numbered in the order in which they can be loaded.
  while read -r verb file _; do
    [[ $verb == insmod ]] || continue
    name=$(basename "${file%.xz}")
    compgen -G "$1/files/modules/*-$name" >/dev/null && continue
    if [[ $file == *.xz ]]; then xz -dc "$file"; else cat "$file"; fi >"$1/files/modules/$((number++))-$name"
  done < <(modprobe -d "$kernel" -S "$version" --show-depends -a virtio_pci 9pnet_virtio 9p overlay dummy veth \
    sch_netem crc32_generic rdma_rxe ib_uverbs rdma_ucm)
  (cd "$1/files" && find . | cpio --quiet -o -H newc) >"$1/initrd" && rm -rf "$1/files"
  # An emulated processor takes seconds to unpack the kernel; QEMU also starts an unpacked one.
  start=$(LC_ALL=C grep -aobPm1 '\xfd7zXZ\x00' "$image" | head -1 | cut -d: -f1)
  [[ -z $start ]] || tail -c "+$((start + 1))" "$image" 2>/dev/null | xz -dc >"$1/kernel" 2>/dev/null
  [[ $(head -c 4 "$1/kernel" 2>/dev/null | tail -c 3) == ELF ]] || cp "$image" "$1/kernel"
}

made_of=$(cat "$0" "$here/guest_init.sh" "$(type -P busybox)" | cksum | cut -d' ' -f1)
boot=$cache/guest-boot/$version-$made_of
if [[ ! -e $boot/kernel ]]; then
  make_boot "$scratch/boot" || exit 125
  if mkdir -p "$cache/guest-boot" 2>/dev/null && cp -r "$scratch/boot" "$cache/guest-boot/.new.$$" 2>/dev/null &&
    mv -T "$cache/guest-boot/.new.$$" "$boot" 2>/dev/null; then
    find "$cache/guest-boot" -mindepth 1 -maxdepth 1 ! -path "$boot" -mtime +1 -exec rm -rf {} +
  else
    rm -rf "$cache/guest-boot/.new.$$"
    boot=$scratch/boot
  fi
fi

# The command as the guest runs it; "door" is the folder that both sides see.
{
  export -p
  printf 'export TANDEM_GUEST_SHARED=/run/door/shared\n'
  printf 'cd %q || exit 125\n' "$PWD"
  printf 'source %q %q || exit 125\n' "$here/guest_network.sh" "$net"
  printf 'exec'
  printf ' %q' "$@"
  printf ' </dev/null\n'
} >"$scratch/door/command"

# ---- run ----

# A /dev/kvm without hardware support behind it does not start a stock kernel. Emulated "rep movsb" is slow.
machine=(-accel tcg -cpu max,-erms)
[[ $clock == wall ]] || machine+=(-icount shift=2,align=off,sleep=on)
if [[ -w /dev/kvm ]] && grep -qwE 'vmx|svm' /proc/cpuinfo; then machine=(-accel kvm -cpu max); fi

start_guest() {
  rm -f "$scratch/door/started" "$scratch/door/status"
  setpriv --pdeathsig TERM qemu-system-x86_64 -no-user-config -nodefaults -display none -no-reboot \
    -machine q35 "${machine[@]}" -smp "$cpus" -m "$memory" \
    -kernel "$boot/kernel" -initrd "$boot/initrd" -serial "file:$scratch/console" \
    -append "console=ttyS0 loglevel=4 tsc=reliable clocksource=tsc no_timer_check nowatchdog rcupdate.rcu_cpu_stall_suppress=1 panic=-1 oops=panic modules=${kernel%/}" \
    -fsdev local,id=host,path=/,readonly=on,security_model=none,multidevs=remap \
    -device virtio-9p-pci,fsdev=host,mount_tag=host \
    -fsdev "local,id=door,path=$scratch/door,security_model=none" \
    -device virtio-9p-pci,fsdev=door,mount_tag=door </dev/null &
  qemu=$!
}

# Seconds of processor time that the guest has had.
used() { awk -v tick="$(getconf CLK_TCK)" '{sub(/.*\) /, ""); print int(($12 + $13) / tick)}' "/proc/$qemu/stat" 2>/dev/null; }

# A start takes 5 s of a processor. One that has had a minute of it and has not got through is hung, however
# long it was kept waiting.
await_start() {
  local deadline=$((SECONDS + seconds)) had
  while [[ ! -e $scratch/door/started ]]; do
    had=$(used)
    [[ -n $had ]] || return 1
    [[ $had -lt 60 && $SECONDS -lt $deadline ]] || return 1
    sleep 0.2
  done
}

stop_guest() {
  kill -9 "$qemu" 2>/dev/null
  wait "$qemu" 2>/dev/null
  qemu=
}

for attempt in 1 2 3; do
  start_guest
  await_start && break
  [[ $attempt -lt 3 ]] || break
  echo "run_in_guest: the guest did not start (attempt $attempt); its last words:" >&2
  tail -n 5 "$scratch/console" >&2
  stop_guest
done

deadline=$((SECONDS + seconds))
ended=out_of_time
while [[ $SECONDS -lt $deadline ]]; do
  # A child that has ended is a zombie until it is waited for.
  if [[ -z $(ps -o stat= -p "$qemu" | grep -v Z) ]]; then
    wait "$qemu"
    ended=$? qemu=
    break
  fi
  sleep 0.2
done
[[ -z $qemu ]] || stop_guest
cat "$scratch/door/stdout" 2>/dev/null
cat "$scratch/door/stderr" >&2 2>/dev/null
if [[ -n ${TANDEM_GUEST_SHARED-} ]]; then cp -r "$scratch/door/shared/." "$TANDEM_GUEST_SHARED"; fi
[[ -s $scratch/door/status ]] && exit "$(cat "$scratch/door/status")"
if [[ $ended == out_of_time ]]; then
  echo "run_in_guest: not finished after $seconds s" >&2
  tail -n 5 "$scratch/console" >&2
  exit 124
fi
echo "run_in_guest: the guest ended by itself (status $ended); its last words:" >&2
tail -n 40 "$scratch/console" >&2
exit 125
