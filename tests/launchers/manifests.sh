#!/bin/bash
# Checks the files of configs/launch that no launcher of tests/launchers reads: kubernetes.yaml by the OpenAPI schema of
# Kubernetes (npm packages kubernetes-models and js-yaml, into a temporary folder), the unit by systemd-analyze.
# Argument: the build folder, for the path of tandem. A field with a wrong type must be refused, too.
set -euo pipefail
source=$(dirname "$(readlink -f "$0")")/../..
tandem=$(readlink -f "$1")/bin/tandem
if ! command -v npm >/dev/null; then
  echo "npm is not installed"
  exit 77
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

cat >"$folder/validate.mjs" <<'END'
import fs from 'fs';
import {loadAll} from 'js-yaml';
import {Job} from 'kubernetes-models/batch/v1';
import {Service} from 'kubernetes-models/v1';

const kinds = {Job, Service};
for (const document of loadAll(fs.readFileSync(process.argv[2], 'utf8'))) {
  new kinds[document.kind](document).validate();
}
END
npm install --silent --no-audit --no-fund --prefix "$folder" kubernetes-models@4 js-yaml@4 >/dev/null
cp "$source/configs/launch/kubernetes.yaml" "$folder/good.yaml"
sed 's/completions: 3/completions: three/' "$folder/good.yaml" >"$folder/bad.yaml"
node "$folder/validate.mjs" "$folder/good.yaml"
if node "$folder/validate.mjs" "$folder/bad.yaml" 2>/dev/null; then
  echo "the validator accepts completions: three"
  exit 1
fi
sed "s,/usr/local/bin/tandem,$tandem," "$source/configs/launch/tandem@.service" >"$folder/tandem@.service"
systemd-analyze verify --man=no "$folder/tandem@.service"
echo "manifests: ok"
