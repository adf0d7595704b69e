#!/bin/bash
# Makes the wheel for every Linux and tries it as a user would: ./check --wheel calls this. Needs pip's index.
#   tests/wheel/run.sh            in fresh environments of this Debian 12: without torch, with Debian's, with that of
#                                 tests/python/torch_versions.txt; and beside other libraries of one process
#   tests/wheel/run.sh SUITE...   also in a fresh Debian of each suite (trixie, testing), made by debootstrap (root)
# The wheel is left in build-wheel/. Below 15 GB of free disk nothing starts.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
source cmake/setup.sh

readonly MOST_MB=60
work=$PWD/build-wheel
failed=0
# try NAME COMMAND...: one line for it, and what it prints.
try() {
  local name=$1
  shift
  say "wheel: $name"
  "$@" || { failed=$((failed + 1)); say "wheel: $name: FAILED"; }
}

free_gb=$(($(df --output=avail -k . | tail -1) / 1024 / 1024))
((free_gb >= 15)) || { say "wheel: $PWD has $free_gb GB free, expected 15 GB for PyTorch and its libraries"; exit 1; }
install_packages "${TANDEM_RUN_PACKAGES[@]}" python3-venv python3-pip dpkg-dev

say "wheel: build"
cmake/wheel_archives.sh "$work/archives"
configure "$work" -DTANDEM_WHEEL=ON "-DTANDEM_WHEEL_ARCHIVES=$work/archives/lib" -DTANDEM_TORCH=OFF -DTANDEM_TESTS=OFF
ninja -C "$work" >"$work/build.log" 2>&1 || { tail -40 "$work/build.log"; exit 1; }
[[ -x $work/tools/bin/auditwheel ]] || python3 -m venv "$work/tools"
"$work/tools/bin/pip" install --quiet --requirement tests/wheel/tools.txt
rm -f "$work"/tandem-*.whl
wheel=$(TANDEM_PYTHON=$work/tools/bin/python cmake/make_wheel.sh "$work" "$work")
say "wheel: $(basename "$wheel"), $(du -m "$wheel" | cut -f1) MB"
(($(stat -c %s "$wheel") <= MOST_MB * 1000000)) || { say "wheel: larger than $MOST_MB MB"; failed=$((failed + 1)); }

# Nothing of C++ that another library in the process could bind to.
library() {
  local unpacked=$work/unpacked so others
  rm -rf "$unpacked"
  python3 -m zipfile -e "$wheel" "$unpacked"
  so=$unpacked/tandem/_prefix/lib/libtandem.so
  others=$(nm -D --defined-only "$so" | awk '$3 !~ /^tandem_/ || $2 == "u"')
  [[ -z $others ]] || { say "libtandem.so exports: $others"; return 1; }
  say "  exports: $(nm -D --defined-only "$so" | wc -l) functions, all tandem_*"
  others=$(readelf -d "$so" | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p')
  say "  needs: $(tr '\n' ' ' <<<"$others")"
  ! grep -Eq 'protobuf|absl|spdlog|fmt|ibverbs|rdmacm' <<<"$others"
}
try "libtandem.so" library

# environment NAME OPTION...: an interpreter that has the wheel.
environment() {
  local folder=$work/environments/$1
  rm -rf "$folder"
  /usr/bin/python3 -m venv "${@:2}" "$folder" >&2
  "$folder/bin/pip" install --quiet --no-cache-dir "$wheel" >&2
  say "$folder/bin/python"
}
# trial PYTHON: the commands of try.py.
trial() {
  rm -rf "$work/trial"
  "$1" tests/wheel/try.py docs/PYTHON.md "$work/trial"
}

python=$(environment plain)
try "without torch" trial "$python"
install_packages python3-torch python3-numpy
python=$(environment debian --system-site-packages)
try "with Debian's torch" trial "$python"
# The torch is unpacked once and enters by a path file.
newest=$(tests/python/torch_environment.sh)
python=$(environment newest)
packages() { "$1" -c 'import site; print(site.getsitepackages()[0])'; }
packages "$newest" >"$(packages "$python")/torch.pth"
try "with the newest torch" trial "$python"
"$(dirname "$python")/pip" install --quiet --no-cache-dir --requirement tests/wheel/others.txt
try "beside other libraries" "$python" tests/wheel/import_orders.py "$work/trial"

for suite in "$@"; do
  [[ $EUID -eq 0 ]] || { say "wheel: debootstrap and chroot need root; hint: sudo $0 $suite"; exit 2; }
  install_packages debootstrap
  try "Debian $suite" tests/wheel/in_debian.sh "$suite" "$work/$suite" "$wheel"
done
say "wheel: $failed failed"
((failed == 0))
