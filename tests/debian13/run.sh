#!/bin/bash
# Makes a fresh Debian 13 in a folder, and runs both commands of README there on a clone of the last commit: ./quickstart and
# ./check. ./check --debian13 calls this. Needs root. Takes no arguments.
#   TANDEM_DEBIAN_MIRROR   the archive; without it the one from which this machine installs, else deb.debian.org
# The folder is build-debian13/root, which the next start deletes. Beside it the compiler cache is kept. Processes and mounts
# are in namespaces of their own, so that none is left when the commands have ended.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
source cmake/setup.sh

[[ $# -eq 0 ]] || { sed -n '2,6s/^# \{0,1\}//p' "$0"; exit 2; }
[[ $EUID -eq 0 ]] || { say "debian13: debootstrap and chroot need root; hint: sudo ./check --debian13"; exit 2; }
install_packages debootstrap git
work=$PWD/build-debian13
system=$work/root
# shellcheck disable=SC2016
own=$(apt-get indextargets --format '$(ORIGIN)/$(LABEL) $(REPO_URI)' | sed -n 's|^Debian/Debian ||p' | sort -u | head -1)
mirror=${TANDEM_DEBIAN_MIRROR:-${own:-http://deb.debian.org/debian}}

say "debian13: $system from $mirror"
rm -rf --one-file-system "$system"
mkdir -p "$system" "$work/ccache"
debootstrap --variant=minbase --include=ca-certificates,git trixie "$system" "$mirror" >"$work/debootstrap.log" 2>&1 ||
  { tail -20 "$work/debootstrap.log"; exit 1; }
cp -L /etc/resolv.conf "$system/etc/resolv.conf"
git clone -q . "$system/tandem"
mkdir "$system/ccache"

# enter COMMAND...: runs it in the clone, as root of the new system.
enter() {
  # shellcheck disable=SC2016
  unshare --mount --pid --fork --kill-child bash -euc '
    mount -t proc proc "$1/proc"
    mount --rbind /sys "$1/sys"
    mount --rbind /dev "$1/dev"
    mount -t tmpfs -o mode=1777 tmpfs "$1/dev/shm"  # that of this machine has files of other processes
    mount --bind "$2" "$1/ccache"
    exec chroot "$1" env -i HOME=/root CCACHE_DIR=/ccache LANG=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin \
      sh -c "cd /tandem && exec \"\$@\"" sh "${@:3}"' enter "$system" "$work/ccache" "$@"
}

say "debian13: Debian $(enter cat /etc/debian_version), commit $(enter git log -1 --format='%h %s')"
for command in ./quickstart ./check; do
  printf '\n=== debian13: %s\n' "$command"
  enter "$command"
done
