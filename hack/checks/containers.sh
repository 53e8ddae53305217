#!/usr/bin/env bash
# Containers with claims: real runtimes, and trees that stand for images of three families.
#
#   hack/checks/containers.sh DIRECTORY PACKAGES
#
# DIRECTORY has the built binaries, with the hook as it is shipped; downloaded packages stay in PACKAGES. For each way
# to finish a container (--hook), a fake node prepares the claims of two pods, and podman starts containers with them:
# by runc and by crun, from trees that are made of packages and laid out as Debian, as Red Hat and as Alpine have it. In
# each of them a program loads libcuda by its SONAME and calls it, and only the claimed GPUs are there.
set -euo pipefail

bin=$(cd "${1:?the directory of the binaries}" && pwd)
packages=$(mkdir -p "${2:?where packages are kept}" && cd "$2" && pwd)
self=$(realpath "$0")
root=$(dirname "$self")/../..
tools=(podman runc crun musl-tools)

# The first user of a user namespace, as the host knows it.
readonly first_user=100000

# Only root makes device nodes, mounts and cgroups. A machine where that cannot be is no reason to fail everything else.
skip() {
  echo "SKIPPED: no containers were started, because $1" >&2
  exit 0
}

has() {
  local program
  for program; do command -v "$program" >/dev/null || return; done
}

# Runs apt-get, after a look at what there is to be had if it does not work without.
apt() {
  apt-get -qq "$@" >/dev/null 2>&1 && return
  apt-get -qq update || true
  apt-get -qq "$@" >/dev/null || {
    echo "cannot get Debian's packages: is a registry of them reached? The command was: apt-get $*" >&2
    return 1
  }
}

install_tools() {
  has apt-get dpkg-deb || skip "this machine is no Debian, of whose packages the trees are made"
  has podman runc crun musl-gcc && return
  DEBIAN_FRONTEND=noninteractive apt --yes --no-install-recommends install "${tools[@]}"
}

# --- trees

# Keeps packages, and all that they depend on, in a directory of this name. What is there is not downloaded again.
download() {
  local directory=$packages/$1
  shift
  if [[ -e $directory/complete && $(<"$directory/complete") == "$*" ]]; then return; fi
  rm -rf "$directory"
  mkdir -p "$directory/partial"
  # As if nothing were installed, so that nothing is left out.
  : >"$directory/status"
  apt -o "Dir::State::status=$directory/status" -o "Dir::Cache::archives=$directory" -o APT::Sandbox::User=root \
    --yes --no-install-recommends --download-only install "$@"
  echo "$*" >"$directory/complete"
}

# Unpacks them into a tree: all, or those whose names begin so.
unpack() {
  local package
  mkdir -p "$1"
  for package in "$packages/$2/${3-}"*.deb; do
    dpkg-deb --fsys-tarfile "$package" | tar --extract --keep-directory-symlink --directory "$1"
  done
}

# A library without a C library, so that every loader can load it.
make_libcuda() {
  cat >"$work/cuda.c" <<'END'
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
END
  cc -shared -nostdlib -fPIC -Wl,-soname,libcuda.so.1 -o "$work/libcuda.so" "$work/cuda.c"
}

# Loads a library by its SONAME, calls it, and says where the loader found it.
make_probe() {
  cat >"$work/probe.c" <<'END'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
int main(int argc, char **argv) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  if (!library) { fprintf(stderr, "%s\n", dlerror()); return 1; }
  int (*get)(int *) = (int (*)(int *))dlsym(library, "cuDriverGetVersion");
  int version = 0;
  Dl_info info;
  if (!get || get(&version) || !dladdr((void *)get, &info)) return 2;
  printf("CUDA %d from %s\n", version, info.dli_fname);
  return 0;
}
END
  cc -o "$work/probe-glibc" "$work/probe.c" -ldl
  musl-gcc -o "$work/probe-musl" "$work/probe.c"
}

# What an image says in its environment and no program outside of the container may obey: a library that leaves a
# trace of having been loaded, and a C library that is none.
make_traps() {
  mkdir "$work/traps"
  cat >"$work/preload.c" <<END
#include <fcntl.h>
__attribute__((constructor)) static void run(void) { open("$work/trapped", O_CREAT | O_RDWR, 0600); }
END
  cc -shared -fPIC -o "$work/traps/preload.so" "$work/preload.c"
  echo "no library" >"$work/traps/libc.so.6"
}

# Debian's own packages, unpacked, and the cache that Debian's ldconfig makes of them.
make_debian() {
  local tree=$work/debian directory
  download debian base-files bash coreutils grep libc-bin
  for directory in bin lib lib64 sbin; do
    mkdir -p "$tree/usr/$directory"
    ln -s "usr/$directory" "$tree/$directory"
  done
  unpack "$tree" debian
  rm -rf "$tree"/usr/share/{doc,locale,man}
  ln -s bash "$tree/bin/sh"
  cp "$work/probe-glibc" "$tree/bin/probe"
  chroot "$tree" /sbin/ldconfig
}

# There are no packages of Red Hat here. What makes its images different is where libraries are, and a loader that looks
# for them in /usr/lib64 by itself: Debian has such a C library in a package for cross compilers.
make_rhel() {
  local tree=$work/rhel
  download rhel libc6-amd64-i386-cross
  cp -a "$work/debian/." "$tree"
  unpack "$work/cross" rhel libc6-amd64
  mv "$tree/usr/lib/$triplet"/*.so* "$tree/usr/lib64/"
  rm -r "$tree/usr/lib/$triplet" "$tree"/etc/{ld.so.cache,ld.so.conf.d,debian_version,os-release}
  cp -a "$work"/cross/usr/*/lib64/. "$tree/usr/lib64/"
  mkdir "$tree/etc/ld.so.conf.d"
  echo 'include ld.so.conf.d/*.conf' >"$tree/etc/ld.so.conf"
  echo 'Red Hat Enterprise Linux release 9' >"$tree/etc/redhat-release"
  chroot "$tree" /sbin/ldconfig
}

# Nor are there any of Alpine. Debian has its C library and its shell.
make_alpine() {
  local tree=$work/alpine applet
  download alpine musl busybox-static
  mkdir -p "$tree"/{bin,usr/bin,etc,dev,proc,sys,tmp,run,lib,usr/lib}
  unpack "$work/musl" alpine musl
  unpack "$work/musl" alpine busybox
  cp -L "$work/musl/lib/ld-musl-$machine.so.1" "$tree/lib/"
  cp "$work/musl/bin/busybox" "$tree/bin/"
  for applet in sh cat env grep readlink stat touch; do ln -s busybox "$tree/bin/$applet"; done
  echo 3.22.0 >"$tree/etc/alpine-release"
  cp "$work/probe-musl" "$tree/bin/probe"
}

# --- containers

# Runtimes whose bundles the root of a user namespace can enter, as containerd makes them and podman does not.
make_runtimes() {
  local runtime
  mkdir "$work/runtimes"
  for runtime in runc crun; do
    cat >"$work/runtimes/$runtime" <<END
#!/bin/sh
find "$work/storage" -type d -exec chmod a+x {} +
exec $(command -v "$runtime") "\$@"
END
  done
  chmod +x "$work"/runtimes/*
}

# What is checked in the container.
# shellcheck disable=SC2016 # for the shell in the container
readonly inside='
  set -eu
  unset LD_PRELOAD LD_LIBRARY_PATH
  say() { echo "in the container: $*" >&2; exit 1; }
  [ "$NVIDIA_VISIBLE_DEVICES" = void ] || say "NVIDIA_VISIBLE_DEVICES is $NVIDIA_VISIBLE_DEVICES"
  for gpu in $GPUS; do
    env | grep -q "^DRA_GPU_${gpu}_UUID=GPU-" || say "no variable has the UUID of GPU $gpu"
    [ "$(stat -c %t:%T "/dev/nvidia$gpu")" = "$(printf "c3:%x" "$gpu")" ] || say "/dev/nvidia$gpu has other numbers"
  done
  for node in nvidiactl nvidia-uvm nvidia-uvm-tools nvidia-modeset; do
    [ -c "/dev/$node" ] || say "/dev/$node is no device"
  done
  for node in /dev/nvidia[0-9]*; do
    case " $GPUS " in *" ${node#/dev/nvidia} "*) ;; *) say "$node is another GPU" ;; esac
  done
  for node in /dev/dri/renderD*; do
    case " $GPUS " in *" $((${node#/dev/dri/renderD} - 128)) "*) ;; *) say "$node is of another GPU" ;; esac
  done
  [ "$HOOK" = none ] || for link in /dev/dri/by-path/*; do [ -c "$link" ] || say "$link leads nowhere"; done
  nvidia-smi --version | grep -q "DRIVER version" || say "nvidia-smi says nothing"
  read -r _ user _ </proc/self/uid_map
  [ "$user" = "$FIRST_USER" ] || say "its root is user $user of the host"
  if touch /written 2>/dev/null; then written=yes; else written=; fi
  [ "$written" = "$WRITABLE" ] || say "its root file system is the other way round"
  [ -z "$LIBRARIES_BY_HAND" ] || export LD_LIBRARY_PATH="$NVIDIA_CTK_LIBCUDA_DIR"
  probe
'

# In mount namespaces of their own: podman knows two directories of specs and no flag for others, crun 1.8 refuses
# machines that mount cgroup v2 beside v1, and in user namespaces, where nobody can make device nodes, runtimes mount
# those of the host's /dev.
run_container() {
  local runtime=$1 family=$2 way=$3 device tree gpus='' by_hand='' writable=yes user=0
  shift 3
  local devices=() flags=()
  for device; do
    devices+=(--device "$device")
    gpus+=" ${device##*gpu-}"
  done
  # A runtime leaves mount points behind in the tree.
  tree=$(mktemp -d "$work/container.XXXX")
  cp -a "$work/$family/." "$tree"
  # Without a hook, images of another family than the host's have to be told where the libraries are.
  [[ $hook == none && $family != debian ]] && by_hand=yes
  case $way in
    read-only)
      flags+=(--read-only)
      writable=
      ;;
    user-namespace)
      flags+=(--uidmap "0:$first_user:65536" --gidmap "0:$first_user:65536")
      user=$first_user
      chown -R "$user:$user" "$tree"
      ;;
  esac
  # shellcheck disable=SC2016 # for the shell that is started
  unshare --mount --propagation private sh -ec '
    umount /sys/fs/cgroup/unified 2>/dev/null || true
    mkdir -p /etc/cdi
    mount --bind "$FAKE_NODE_DIR/var/run/cdi" /etc/cdi
    mount --types tmpfs tmpfs "$work/dev"
    cp --archive --one-file-system /dev/. "$FAKE_NODE_DIR/dev/." "$work/dev"
    mount --rbind "$work/dev" /dev
    exec "$@"
  ' sh podman --runtime "$work/runtimes/$runtime" --root "$work/storage" --runroot "$work/run" \
    --cgroup-manager=cgroupfs run --rm --network=none --ulimit nofile=1024:4096 --ulimit nproc=1000:1000 \
    "${flags[@]}" "${devices[@]}" \
    --env "GPUS=$gpus" --env "HOOK=$hook" --env "LIBRARIES_BY_HAND=$by_hand" --env "FIRST_USER=$user" \
    --env "WRITABLE=$writable" --env PATH=/bin:/usr/bin \
    --env "LD_PRELOAD=$work/traps/preload.so" --env "LD_LIBRARY_PATH=$work/traps" \
    --volume "$FAKE_NODE_DIR/usr/bin/nvidia-smi.d:/usr/bin/nvidia-smi.d:ro" \
    --rootfs "$tree" sh -c "$inside" 2>"$tree.log" || {
    cat "$tree.log" >&2
    echo "FAILED: hook $hook, $runtime, $family, $way, $*" >&2
    return 1
  }
}

# Starts one container for each runtime and family, with these devices.
start_containers() {
  local way=$1 runtime family output
  shift
  for runtime in runc crun; do
    for family in $families; do
      output=$(run_container "$runtime" "$family" "$way" "$@")
      [[ $output == "CUDA 13000 from "*libcuda.so.1 ]] || { echo "the probe says: $output" >&2; return 1; }
      count=$((count + 1))
    done
  done
}

# Runs beside a node with claims.
containers() {
  local version way count=0
  local claims
  version=$(basename "$FAKE_NODE_DIR/usr/lib/$triplet"/libcuda.so.*.*.* | sed 's/libcuda.so.//')
  cp "$work/libcuda.so" "$FAKE_NODE_DIR/usr/lib/$triplet/libcuda.so.$version"
  mapfile -t claims <<<"$FAKE_NODE_CDI_DEVICES"
  for way in plain read-only user-namespace; do start_containers "$way" "${claims[0]}"; done
  # The other pod's claim sees its own GPU alone, and for a container with both the hook runs twice.
  start_containers plain "${claims[1]}"
  start_containers plain "${claims[@]}"
  [[ ! -e $work/trapped ]] || { echo "the hook has loaded a library of the image's choice" >&2; return 1; }
  echo "hook $hook: $count containers"
}

main() {
  [[ $(id -u) == 0 ]] || skip "this is not root"
  unshare --mount true 2>/dev/null || skip "this process may not make mount namespaces"
  install_tools
  if [[ $("$bin/gpu-dra-hook" --version) != *"(static)" ]]; then
    echo "$bin/gpu-dra-hook is not the one of hack/build-hook" >&2
    exit 1
  fi
  work=$(mktemp -d /tmp/XXXXXX)
  trap 'rm -rf "$work"' EXIT
  [[ -e /etc/cdi ]] || trap 'rm -rf "$work"; rmdir /etc/cdi' EXIT
  # Users of a user namespace come by.
  chmod 755 "$work"
  mkdir "$work/dev"
  make_libcuda
  make_probe
  make_traps
  make_runtimes
  make_debian
  make_alpine
  families="debian alpine"
  if [[ $machine == x86_64 ]]; then
    make_rhel
    families+=" rhel"
  else
    echo "no tree is laid out as Red Hat has it: for $machine there is no package with such a C library" >&2
  fi
  export work families hook
  for hook in none own; do
    # In the plugin's own directory, users of a user namespace could not run it.
    "$bin/fake-node" exec --topology dgx-h100 --drm --dir "$work/$hook" --plugin-flag="--hook=$hook" \
      --plugin-flag="--hook-directory=$work/hooks" \
      --pod "$root/deploy/examples/one-gpu/pod.yaml" --pod "$root/deploy/examples/one-gpu/pod.yaml" \
      -- "$self" "$bin" "$packages" beside
  done
}

machine=$(uname -m)
triplet=$machine-linux-gnu
if [[ ${3-} == beside ]]; then containers; else main; fi
