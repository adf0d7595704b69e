#!/bin/bash
# The recipes of docs/HACKING.md ("Adding a ...") as patches, one thing each: applies them all to a copy of
# the tree, builds the tests that they name and runs these. So the page stays true, and each patch
# shows every place that an addition touches.
#   tests/recipes/run.sh [NAME...]  all, or these; some minutes; ./check --all does it
#   tests/recipes/run.sh --apply    only whether each patch fits the tree
# The copy is build-recipes/tree. A recipe that does not fit any more: change the copy by hand, and keep
# `git diff` of it, below the lines on top of the patch.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
source cmake/setup.sh

[[ ${1-} != -* || $1 == --apply ]] || { sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 2; }
recipes=(tests/recipes/*.patch)
if [[ $# -gt 0 && $1 != --apply ]]; then
  recipes=("${@/#/tests/recipes/}")
  recipes=("${recipes[@]/%/.patch}")
fi
work=build-recipes
if [[ ${1-} == --apply ]]; then
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
fi
mkdir -p "$work/tree"
find "$work/tree" -mindepth 1 -maxdepth 1 ! -name build -exec rm -rf {} +
git ls-files -z | xargs -0 cp --preserve=timestamps --parents --target-directory="$work/tree"

targets=()
for recipe in "${recipes[@]}"; do
  patch --quiet --strip=1 --no-backup-if-mismatch --directory="$work/tree" <"$recipe" ||
    { say "$recipe does not fit the tree any more"; exit 1; }
  read -ra named < <(sed -n "s/^Targets: //p" "$recipe")
  targets+=("${named[@]}")
  say "$recipe: applied, tested by ${named[*]}"
done
[[ ${1-} != --apply ]] || exit 0

torch=OFF
[[ " ${targets[*]} " == *" models_test "* ]] && torch=ON
# The compiler cache may take for the copy what it has kept of this tree, although the folder is another.
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=true
cd "$work/tree"
configure build -DTANDEM_TORCH=$torch
ninja -C build "${targets[@]}"
ctest --test-dir build --output-on-failure --no-tests=error -R "^($(IFS='|'; printf '%s' "${targets[*]}"))\$"
