#!/bin/bash
# Makes a wheel of the Python package with libtandem.so and the programs:
#   cmake/make_wheel.sh BUILD OUT      BUILD: a completed build folder; OUT: where the wheel goes
# Needs pip, setuptools and wheel of $TANDEM_PYTHON (default: python3). The wheel runs on machines
# that have the libraries which the programs link (docs/HACKING.md lists their packages). So its
# platform is linux, not manylinux.
set -euo pipefail
[[ $# == 2 ]] || { sed -n '2,6s/^# \{0,1\}//p' "$0"; exit 2; }
python=${TANDEM_PYTHON:-python3}
"$python" -c 'import setuptools, pip, wheel' 2>/dev/null || {
  echo "make_wheel.sh: $python has no pip, setuptools or wheel;" \
    "hint: apt install python3-pip python3-wheel" >&2
  exit 2
}
build=$(readlink -f "$1")
mkdir -p "$2"
out=$(readlink -f "$2")
version=$(sed -n 's/^CMAKE_PROJECT_VERSION:[^=]*=//p' "$build/CMakeCache.txt")
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT

prefix=$stage/tandem/_prefix
cmake --install "$build" --prefix "$prefix" --strip >/dev/null
cp -r "$prefix/share/tandem/python/tandem/." "$stage/tandem/"
find "$prefix/lib" -mindepth 1 ! -name 'libtandem*.so' -depth \
  \( -type f -o -type l -o -type d -empty \) -delete
rm -rf "$prefix/include" "$prefix/share/doc"

cat >"$stage/tandem/_programs.py" <<'PYTHON'
"""The commands of the wheel: each becomes the program of its name."""
import os
import sys


def main() -> None:
    """Does not return."""
    name = os.path.basename(sys.argv[0])
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_prefix", "bin", name)
    os.execv(program, [program, *sys.argv[1:]])
PYTHON
cat >"$stage/setup.py" <<PYTHON
import os
import setuptools
from setuptools.dist import Distribution
from wheel.bdist_wheel import bdist_wheel


class WithPrograms(Distribution):
    def has_ext_modules(self):
        return True


class AnyPython(bdist_wheel):
    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


files = [os.path.relpath(os.path.join(folder, name), "tandem")
         for folder, _, names in os.walk("tandem/_prefix") for name in names]
setuptools.setup(
    name="tandem", version="$version", packages=["tandem"],
    package_data={"tandem": ["py.typed", *files]},
    description="Training of recommendation models on parameter servers",
    python_requires=">=3.9", install_requires=["numpy"], distclass=WithPrograms,
    cmdclass={"bdist_wheel": AnyPython},
    entry_points={"console_scripts": [f"{name} = tandem._programs:main"
                                      for name in sorted(os.listdir("tandem/_prefix/bin"))]})
PYTHON
"$python" -m pip wheel --quiet --no-deps --no-build-isolation --no-index --wheel-dir "$out" "$stage"
ls "$out"/tandem-"$version"-*.whl
