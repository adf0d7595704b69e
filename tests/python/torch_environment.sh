#!/bin/bash
# Makes an environment with the PyTorch and numpy of tests/python/torch_versions.txt, beside Debian's, and prints its
# interpreter. ./check --torch runs the tests of the Python package with it. Needs pip's index, and python3-venv.
#   torch_environment.sh            that one
#   torch_environment.sh torchrec   one of tests/python/torchrec_versions.txt, for ./check --torchrec
#   torch_environment.sh peers      that and tests/bench/peers/versions.txt, for the scripts of tests/bench/peers
#   torch_environment.sh arrow      one of tests/python/arrow_versions.txt, for ./check --arrow
#   TANDEM_PYTHON   the interpreter whose version the environment has (default: /usr/bin/python3)
# The folder is build-torch/python3.X, build-torch/torchrec-python3.X or build-torch/peers-python3.X (about 7 GB), or
# build-torch/arrow-python3.X (1 GB), one for each version of Python. It is made again if a file of versions has
# changed. TANDEM_TORCH_ENVIRONMENTS names another folder for build-torch, so that several trees share it.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."

kind=${1:-torch}
[[ $# -le 1 && $kind =~ ^(torch|torchrec|peers|arrow)$ ]] || { sed -n '2,12s/^# \{0,1\}//p' "$0"; exit 2; }
needed_gb=15
versions=(tests/python/torchrec_versions.txt)
options=(--no-deps)
case $kind in
  torch) versions=(tests/python/torch_versions.txt) options=() ;;
  # The files name all packages. torchrec requires fbgemm-gpu, which has the folder of the smaller fbgemm-gpu-cpu.
  torchrec) ;;
  peers) versions+=(tests/bench/peers/versions.txt) ;;
  arrow) versions=(tests/python/arrow_versions.txt) options=() needed_gb=3 ;;
esac
python=${TANDEM_PYTHON:-/usr/bin/python3}
folder=$(realpath -m "${TANDEM_TORCH_ENVIRONMENTS:-build-torch}")
environment=$folder/$("$python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
if [[ $kind != torch ]]; then environment=$folder/$kind-${environment##*/}; fi

if ! cat "${versions[@]}" | cmp -s - "$environment/versions.txt"; then
  mkdir -p "$folder"
  free_gb=$(($(df --output=avail -k "$folder" | tail -1) / 1024 / 1024))
  if ((free_gb < needed_gb)); then
    echo "torch_environment.sh: $folder has $free_gb GB free, expected $needed_gb GB for $kind and its libraries" >&2
    exit 1
  fi
  rm -rf --one-file-system "$environment"
  "$python" -m venv "$environment" >&2
  "$environment/bin/python" -m pip install --quiet --no-cache-dir "${options[@]}" "${versions[@]/#/--requirement=}" >&2
  cat "${versions[@]}" >"$environment/versions.txt"
fi
echo "$environment/bin/python"
