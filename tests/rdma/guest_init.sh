#!/bin/busybox sh
# First process of the guest of run_in_guest.sh: loads the drivers, lays memory over the host's files,
# runs the command that lies behind the door, leaves its exit status there and switches off.
/bin/busybox --install -s /bin
mkdir -p /proc /sys /dev /host /layer /all
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
for module in /modules/*; do insmod "$module"; done

share="trans=virtio,version=9p2000.L,msize=512000"
mount -t 9p -o "$share,ro,cache=loose" host /host
mount -t tmpfs -o size=80% layer /layer
mkdir /layer/changes /layer/scratch
mount -t overlay -o lowerdir=/host,upperdir=/layer/changes,workdir=/layer/scratch overlay /all
for name in proc sys dev; do mount --move /$name /all/$name; done
mkdir -p /all/dev/shm /all/dev/pts /all/run/door
mount -t tmpfs shm /all/dev/shm
mount -t devpts devpts /all/dev/pts
mount -t 9p -o "$share,rw" door /all/run/door
: >/all/run/door/started
# modprobe (called by ip and rdma) must see the modules of this kernel.
modules=$(sed 's/.*modules=\([^ ]*\).*/\1/' /all/proc/cmdline)
[ -z "$modules" ] || mkdir -p /all/lib/modules
[ -z "$modules" ] || mount --bind "/all$modules/lib/modules" /all/lib/modules

exec switch_root /all /bin/bash -c '
  bash /run/door/command >/run/door/stdout 2>/run/door/stderr
  echo $? >/run/door/status
  sync
  exec busybox poweroff -f'
