#!/bin/bash
# Builds Debian's Abseil and Protocol Buffers from their source as archives that a shared library can have inside. Those in
# Debian's packages are for programs: they expect thread-local variables at fixed places.
#   cmake/wheel_archives.sh FOLDER     makes FOLDER/lib; does nothing if it is there
# Needs apt, dpkg-dev, g++, cmake and ninja. A build with TANDEM_WHEEL=ON takes -DTANDEM_WHEEL_ARCHIVES=FOLDER/lib.
set -euo pipefail
[[ $# == 1 ]] || { sed -n '2,5s/^# \{0,1\}//p' "$0"; exit 2; }
folder=$(realpath -m "$1")
[[ ! -d $folder/lib ]] || exit 0
source /etc/os-release
source=$folder/source
rm -rf "$source"
mkdir -p "$source/lists/partial"
cd "$source"
printf 'deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s %s main\n' \
  "${TANDEM_DEBIAN_MIRROR:-http://deb.debian.org/debian}" "$VERSION_CODENAME" >sources.list
# Lists of packages of its own: those of the machine stay as they are.
apt=(apt-get -qq -o "Dir::Etc::sourcelist=$PWD/sources.list" -o Dir::Etc::sourceparts=/dev/null -o "Dir::State::lists=$PWD/lists"
  -o "Dir::Cache::srcpkgcache=$PWD/cache.bin" -o "Dir::Cache::pkgcache=" -o APT::Sandbox::User=root)
"${apt[@]}" update

# archives PACKAGE CMAKE_OPTION...: compiled as Debian does, but for a shared library.
archives() {
  "${apt[@]}" source --only-source "$1" >"$1.log" 2>&1 &&
    cmake -G Ninja -S "$1"-*/ -B "$1.build" -DCMAKE_BUILD_TYPE=Release -DCMAKE_POSITION_INDEPENDENT_CODE=ON -DBUILD_SHARED_LIBS=OFF \
      -DCMAKE_CXX_STANDARD=17 -DCMAKE_INSTALL_PREFIX="$source/installed" -DCMAKE_INSTALL_LIBDIR=lib "${@:2}" >>"$1.log" 2>&1 &&
    ninja -C "$1.build" install >>"$1.log" 2>&1 || { tail -40 "$1.log"; return 1; }
}
archives abseil
archives protobuf -Dprotobuf_BUILD_TESTS=OFF -Dprotobuf_BUILD_PROTOC_BINARIES=OFF
mv "$source/installed/lib" "$folder/lib"
rm -rf "$source"
