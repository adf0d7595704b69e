#!/bin/bash
# Makes a fresh Debian 13 in a folder, and runs both commands of README there on a clone of the last commit: ./quickstart and
# ./check. ./check --debian13 calls this. Needs root. Takes no arguments. cmake/setup.sh says which archive it takes.
# The folder is build-debian13/root, which the next start makes anew, except for the compiler cache.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
source cmake/setup.sh

[[ $# -eq 0 ]] || { sed -n '2,4s/^# \{0,1\}//p' "$0"; exit 2; }
[[ $EUID -eq 0 ]] || { say "debian13: debootstrap and chroot need root; hint: sudo ./check --debian13"; exit 2; }
install_packages debootstrap git
work=$PWD/build-debian13
system=$work/root
mkdir -p "$work" "$work/ccache"
[[ ! -d $system/ccache ]] || { rm -rf "$work/ccache"; mv "$system/ccache" "$work/ccache"; }
make_debian trixie "$system" git
mv "$work/ccache" "$system/ccache"
git clone -q . "$system/tandem"

say "debian13: Debian $(enter_debian "$system" cat /etc/debian_version), commit $(git log -1 --format='%h %s')"
for command in ./quickstart ./check; do
  printf '\n=== debian13: %s\n' "$command"
  enter_debian "$system" "$command"
done
