#!/bin/bash
# Tries a wheel in a fresh Debian that has Python and nothing else of ours:
#   tests/wheel/in_debian.sh SUITE FOLDER WHEEL     needs root; FOLDER is deleted first
# Without torch, with Debian's, and with the one of tests/python/torch_versions.txt.
set -euo pipefail
[[ $# == 3 ]] || { sed -n '2,4s/^# \{0,1\}//p' "$0"; exit 2; }
system=$(realpath -m "$2") wheel=$(realpath "$3")
cd "$(dirname "$(readlink -f "$0")")/../.."
source cmake/setup.sh

make_debian "$1" "$system" python3-venv python3-torch
mkdir "$system/tandem"
cp "$wheel" tests/wheel/try.py tests/python/torch_versions.txt docs/PYTHON.md "$system/tandem"
# shellcheck disable=SC2016
enter_debian "$system" bash -euc '
  failed=0
  printf "  Debian %s, %s\n" "$(cat /etc/debian_version)" "$(python3 --version)"
  trial() { "$1/bin/python" try.py PYTHON.md "out-$2" || failed=1; }
  python3 -m venv plain
  plain/bin/pip install --quiet --no-cache-dir tandem-*.whl
  echo "  without torch"
  trial plain none
  python3 -m venv --system-site-packages debian
  debian/bin/pip install --quiet --no-cache-dir tandem-*.whl
  echo "  with the torch of Debian"
  trial debian debian
  plain/bin/pip install --quiet --no-cache-dir --requirement torch_versions.txt
  echo "  with the newest torch"
  trial plain newest
  exit $failed'
