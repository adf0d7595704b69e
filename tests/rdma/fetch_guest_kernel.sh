#!/bin/bash
# Unpacks Debian's stock kernel beside the tree's other caches (.cache/guest-kernel, 400 MB),
# for run_in_guest.sh. Installs nothing and needs no rights; does nothing if it is there.
set -euo pipefail
folder=$(dirname "$(readlink -f "$0")")/../../.cache/guest-kernel
compgen -G "$folder/lib/modules/*/kernel/drivers/infiniband/sw/rxe/rdma_rxe.ko*" >/dev/null && exit 0
# The "cloud" kernels have neither Soft-RoCE nor 9p.
package=$(apt-cache depends linux-image-amd64 2>/dev/null | sed -n 's/^ *Depends: \(linux-image-.*\)/\1/p' | head -1 || true)
[[ -n $package ]] || { echo "fetch_guest_kernel: apt knows no stock kernel for amd64" >&2; exit 1; }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
(cd "$scratch" && apt-get -qq download "$package" 2>/dev/null) || { echo "fetch_guest_kernel: cannot fetch $package" >&2; exit 1; }
mkdir -p "$scratch/tree" "$(dirname "$folder")"
dpkg -x "$scratch"/*.deb "$scratch/tree"
# Since Debian 13 the modules are in usr/lib.
[[ -e $scratch/tree/lib ]] || ln -s usr/lib "$scratch/tree/lib"
rm -rf "$folder"
mv "$scratch/tree" "$folder"
echo "fetch_guest_kernel: $package"
