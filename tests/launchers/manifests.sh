#!/bin/bash
# Checks the files of configs/launch that no launcher of tests/launchers reads: kubernetes.yaml by the OpenAPI schema of
# Kubernetes (kubernetes-validate from pip's index, into a temporary folder), the unit by systemd-analyze.
# Argument: the build folder, for the path of tandem. A field with a wrong type must be refused, too.
set -euo pipefail
source=$(dirname "$(readlink -f "$0")")/../..
tandem=$(readlink -f "$1")/bin/tandem
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

python3 -m venv "$folder/tools"
if ! "$folder/tools/bin/pip" install --quiet --no-cache-dir kubernetes-validate==1.37.0; then
  echo "pip's index gives no kubernetes-validate"
  exit 77
fi
validate() { "$folder/tools/bin/kubernetes-validate" --strict "$1"; }
cp "$source/configs/launch/kubernetes.yaml" "$folder/good.yaml"
sed 's/completions: 3/completions: three/' "$folder/good.yaml" >"$folder/bad.yaml"
validate "$folder/good.yaml"
if validate "$folder/bad.yaml" >/dev/null 2>&1; then
  echo "the validator accepts completions: three"
  exit 1
fi
sed "s,/usr/local/bin/tandem,$tandem," "$source/configs/launch/tandem@.service" >"$folder/tandem@.service"
systemd-analyze verify --man=no "$folder/tandem@.service"
echo "manifests: ok"
