# Functions that quickstart and check share. Source this file from the root of the tree.
# shellcheck shell=bash disable=SC2034

# Debian packages of the programs, the Python package and the figures. docs/HACKING.md says what
# each is for.
TANDEM_RUN_PACKAGES=(
  g++ cmake ninja-build pkg-config python3 ccache lld
  protobuf-compiler libprotobuf-dev libabsl-dev libboost-dev libspdlog-dev libcli11-dev
  nlohmann-json3-dev prometheus-cpp-dev
  libzmq3-dev libsodium-dev libibverbs-dev librdmacm-dev libxxhash-dev zlib1g-dev libzstd-dev
  libtorch-dev libdnnl-dev libopenblas0-openmp
  python3-numpy python3-torch python3-matplotlib)
# Packages for the tests.
TANDEM_CHECK_PACKAGES=(
  clang libclang-rt-dev libomp-dev libgtest-dev libgmock-dev
  python3-pandas python3-sklearn python3-setuptools python3-zmq openmpi-bin patch)
# Launchers for tests/launchers (./check --launchers).
TANDEM_LAUNCHER_PACKAGES=(
  mpich openssh-client openssh-server openssl slurmctld slurmd slurm-client munge
  iproute2 prometheus curl python3-venv python3-pip systemd)
# Packages for a guest with a software RDMA device (tests/rdma/run_in_guest.sh). Without them the
# tests there are skipped.
TANDEM_GUEST_PACKAGES=(
  ibverbs-providers iproute2
  qemu-system-x86 busybox-static cpio kmod xz-utils)

say() { printf '%s\n' "$*"; }

# Prints those of the given packages that are not installed, one per line.
missing_packages() {
  local package
  for package in "$@"; do
    dpkg-query -W -f='${db:Status-Abbrev}' "$package" 2>/dev/null | grep -q '^ii' || say "$package"
  done
}

# Installs the missing ones of the given packages. Exits with 2 if that is not possible.
install_packages() {
  if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
    say "This system has no apt. Tandem needs the equivalents of these Debian packages:"
    printf '  %s\n' "$@"
    say "After installing them: cmake -G Ninja -B build -S . && ninja -C build (docs/HACKING.md)"
    exit 2
  fi
  local missing root=()
  mapfile -t missing < <(missing_packages "$@")
  if [[ ${#missing[@]} -eq 0 ]]; then
    say "packages: all $# installed"
    return 0
  fi
  say "packages: installing ${missing[*]}"
  if [[ $EUID -ne 0 ]]; then
    if ! command -v sudo >/dev/null; then
      say "Not root, and no sudo. Please run: apt-get install ${missing[*]}"
      exit 2
    fi
    root=(sudo)
  fi
  local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -qq -o=Dpkg::Use-Pty=0)
  if ! "${root[@]}" "${apt[@]}" update ||
    ! "${root[@]}" "${apt[@]}" install -y --no-install-recommends "${missing[@]}" >/dev/null; then
    say "apt-get failed; see above"
    exit 2
  fi
}

# Prints an option for x86-64 if this processor cannot run the default build (Haswell, 2013, and
# later can).
march_option() {
  local flag
  [[ $(uname -m) == x86_64 && -r /proc/cpuinfo ]] || return 0
  for flag in avx2 fma bmi1 bmi2 movbe f16c; do
    grep -m1 '^flags' /proc/cpuinfo | grep -qw "$flag" || { say -DTANDEM_MARCH=x86-64; return 0; }
  done
}

# Refuses a build folder that was configured for another source folder, for example one that was
# copied together with the tree. Ninja would compile the other sources there.
check_build_folder() {
  local home
  home=$(sed -n 's/^CMAKE_HOME_DIRECTORY:INTERNAL=//p' "$1/CMakeCache.txt" 2>/dev/null) || return 0
  [[ -z $home || $home -ef . ]] && return 0
  say "$1: this build folder compiles $home, not $PWD; hint: rm -r $1"
  return 1
}

# make_debian SUITE FOLDER PACKAGE...: a fresh minimal Debian in the folder, which is deleted first. Needs root. The archive is
# $TANDEM_DEBIAN_MIRROR, or the one from which this machine installs, or deb.debian.org.
make_debian() {
  local suite=$1 folder=$2 own mirror
  shift 2
  # shellcheck disable=SC2016
  own=$(apt-get indextargets --format '$(ORIGIN)/$(LABEL) $(REPO_URI)' | sed -n 's|^Debian/Debian ||p' | sort -u | head -1)
  mirror=${TANDEM_DEBIAN_MIRROR:-${own:-http://deb.debian.org/debian}}
  say "Debian $suite in $folder from $mirror"
  rm -rf --one-file-system "$folder"
  mkdir -p "$folder"
  debootstrap --variant=minbase --include="$(IFS=,; printf '%s' "ca-certificates,$*")" "$suite" "$folder" "$mirror" \
    >"$folder.log" 2>&1 || { tail -20 "$folder.log"; return 1; }
  cp -L /etc/resolv.conf "$folder/etc/resolv.conf"
  # Copy certificates that this machine trusts in addition to Debian's list, such as that of a proxy.
  [[ -z $(ls -A /usr/local/share/ca-certificates 2>/dev/null) ]] || {
    cp -rL /usr/local/share/ca-certificates "$folder/usr/local/share/"
    chroot "$folder" update-ca-certificates >>"$folder.log" 2>&1
  }
}

# enter_debian FOLDER COMMAND...: runs it as root of that system, in /tandem. Processes and mounts are in namespaces of their
# own, so that none is left when the command has ended.
enter_debian() {
  # shellcheck disable=SC2016
  unshare --mount --pid --fork --kill-child bash -euc '
    mount --bind "$1" "$1"  # so that / is a mount there, which namespaces of tests need
    mount -t proc proc "$1/proc"
    mount --rbind /sys "$1/sys"
    mount --rbind /dev "$1/dev"
    mount -t tmpfs -o mode=1777 tmpfs "$1/dev/shm"  # that of this machine has files of other processes
    exec chroot "$1" env -i HOME=/root CCACHE_DIR=/ccache LANG=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin \
      sh -c "cd /tandem && exec \"\$@\"" sh "${@:2}"' enter "$@"
}

# usage SCRIPT: prints the comment at its beginning.
usage() { sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$1"; }

# configure DIR OPTION... runs CMake, quietly unless it fails. Several sources are compiled at a
# time (unity builds). docs/HACKING.md describes a folder for editing that compiles them one by one.
configure() {
  local dir=$1 march log
  shift
  check_build_folder "$dir" || return 1
  march=$(march_option)
  mkdir -p "$dir"
  log=$dir/configure.log
  cmake -G Ninja -S . -B "$dir" \
    -DCMAKE_UNITY_BUILD=ON ${march:+"$march"} "$@" >"$log" 2>&1 || { cat "$log"; return 1; }
}

minutes() { printf '%d:%02d' $(($1 / 60)) $(($1 % 60)); }
