#!/bin/bash
# Runs a command where there is an RDMA device.
#
#   tests/rdma/run_in_guest.sh [--net one|pair|lossy] [--seconds N] [--cpus N] [--memory MIB] COMMAND [ARG...]
#
# On a machine with an RDMA device of its own whose port is active, that is simply here. Elsewhere it is
# a small QEMU guest: Debian's kernel with Soft-RoCE (rdma_rxe), and this machine's files under a layer of
# memory, so that the command finds all it finds here and changes nothing. The command is root, has this
# environment and this folder, and TANDEM_RDMA_HOSTS lists the addresses that have a device:
#   one    one device                              192.0.2.1
#   pair   two devices, joined by a veth pair      10.9.0.1,10.9.0.2
#   lossy  the same, losing 1 % of all packets, with 0.5 ms of delay
#
# Exit status: the command's. 77: something is missing, and what; 124: out of time; 125: the guest failed.
# TANDEM_GUEST_KERNEL: a folder with an unpacked linux-image package (default: .cache/guest-kernel of the
# tree, see fetch_guest_kernel.sh; else this machine's own). TANDEM_GUEST=always: a guest even beside a device.
set -u
here=$(dirname "$(readlink -f "$0")")
net=one seconds=300 cpus=2 memory=3072
while [[ ${1-} == --* ]]; do
  case $1 in
    --net) net=$2 ;;
    --seconds) seconds=$2 ;;
    --cpus) cpus=$2 ;;
    --memory) memory=$2 ;;
    *) sed -n '2,19s/^# \{0,1\}//p' "$0" >&2; exit 125 ;;
  esac
  shift 2
done
[[ $# -gt 0 ]] || { sed -n '2,19s/^# \{0,1\}//p' "$0" >&2; exit 125; }

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
for tree in "${TANDEM_GUEST_KERNEL-}" "$here/../../.cache/guest-kernel" /; do
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
image=${kernel%/}/boot/vmlinuz-$version
[[ -e ${kernel%/}/lib/modules/$version/modules.dep ]] || depmod -b "$kernel" "$version" || exit 125

# ---- the guest's files ----

scratch=$(mktemp -d)
qemu=
finish() {
  [[ -z $qemu ]] || { kill "$qemu" && wait "$qemu"; } 2>/dev/null
  rm -rf "$scratch"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
mkdir -p "$scratch/boot/bin" "$scratch/boot/modules" "$scratch/door"
cp "$(type -P busybox)" "$scratch/boot/bin/busybox"
cp "$here/guest_init.sh" "$scratch/boot/init"
chmod +x "$scratch/boot/init"

# The modules with all they depend on, numbered in the order in which they can be loaded.
number=1000
while read -r verb file _; do
  [[ $verb == insmod ]] || continue
  name=$(basename "${file%.xz}")
  compgen -G "$scratch/boot/modules/*-$name" >/dev/null && continue
  if [[ $file == *.xz ]]; then xz -dc "$file"; else cat "$file"; fi >"$scratch/boot/modules/$((number++))-$name"
done < <(modprobe -d "$kernel" -S "$version" --show-depends -a virtio_pci 9pnet_virtio 9p overlay dummy veth \
  sch_netem crc32_generic rdma_rxe ib_uverbs rdma_ucm)
(cd "$scratch/boot" && find . | cpio --quiet -o -H newc) >"$scratch/initrd"

# The command as the guest runs it; "door" is the folder that both sides see.
{
  export -p
  printf 'cd %q || exit 125\n' "$PWD"
  printf 'source %q %q || exit 125\n' "$here/guest_network.sh" "$net"
  printf 'exec'
  printf ' %q' "$@"
  printf ' </dev/null\n'
} >"$scratch/door/command"

# An emulated processor takes seconds to unpack the kernel; QEMU also starts an unpacked one.
start=$(LC_ALL=C grep -aobPm1 '\xfd7zXZ\x00' "$image" | head -1 | cut -d: -f1)
if [[ -n $start ]]; then
  tail -c "+$((start + 1))" "$image" 2>/dev/null | xz -dc >"$scratch/vmlinux" 2>/dev/null
  [[ $(head -c 4 "$scratch/vmlinux" | tail -c 3) == ELF ]] && image=$scratch/vmlinux
fi

# ---- run ----

# A /dev/kvm without hardware support behind it does not start a stock kernel. Emulated "rep movsb" is slow.
accelerator=tcg processor=max,-erms
if [[ -w /dev/kvm ]] && grep -qwE 'vmx|svm' /proc/cpuinfo; then accelerator=kvm processor=max; fi
setpriv --pdeathsig TERM timeout --kill-after 5 "$seconds" \
  qemu-system-x86_64 -no-user-config -nodefaults -display none -no-reboot \
  -machine q35 -accel "$accelerator" -cpu "$processor" -smp "$cpus" -m "$memory" \
  -kernel "$image" -initrd "$scratch/initrd" -serial "file:$scratch/console" \
  -append "console=ttyS0 loglevel=4 no_timer_check panic=-1 oops=panic modules=${kernel%/}" \
  -fsdev local,id=host,path=/,readonly=on,security_model=none,multidevs=remap \
  -device virtio-9p-pci,fsdev=host,mount_tag=host \
  -fsdev "local,id=door,path=$scratch/door,security_model=none" \
  -device virtio-9p-pci,fsdev=door,mount_tag=door </dev/null &
qemu=$!
wait "$qemu"
ended=$?
qemu=
cat "$scratch/door/stdout" 2>/dev/null
cat "$scratch/door/stderr" 2>/dev/null >&2
[[ -s $scratch/door/status ]] && exit "$(cat "$scratch/door/status")"
if [[ $ended == 124 || $ended == 137 ]]; then
  echo "run_in_guest: not finished after $seconds s" >&2
  exit 124
fi
echo "run_in_guest: the guest ended by itself (status $ended); its last words:" >&2
tail -n 40 "$scratch/console" >&2
exit 125
