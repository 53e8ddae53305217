#!/usr/bin/env bash
# Containers with claims: real runtimes, and trees that stand for images of three families.
#
#   hack/checks/containers.sh DIRECTORY
#
# DIRECTORY has the built binaries. For each way to finish a container (--hook), a fake node prepares the claims of two
# pods, and podman starts containers with them: by runc and by crun, from trees that are laid out as Debian, as Red Hat and
# as Alpine have it. In each of them a program loads libcuda by its SONAME and calls it, and only the claimed GPUs are there.
set -euo pipefail

bin=$(cd "${1:?the directory of the binaries}" && pwd)
self=$(realpath "$0")
root=$(dirname "$self")/../..
packages=(podman runc crun busybox-static musl-tools)

# Only root makes device nodes, mounts and cgroups. A machine where that cannot be is no reason to fail everything else.
skip() {
  echo "SKIPPED: no containers were started, because $1" >&2
  exit 0
}

has() {
  local program
  for program; do command -v "$program" >/dev/null || return; done
}

install_packages() {
  has podman runc crun busybox musl-gcc && return
  has apt-get || skip "this machine lacks one of ${packages[*]} and is no Debian"
  apt-get -qq update
  DEBIAN_FRONTEND=noninteractive apt-get -qq --yes --no-install-recommends install "${packages[@]}" >/dev/null
}

# --- trees

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

# What every tree has.
base() {
  local tree=$1 applet
  mkdir -p "$tree"/{bin,usr/bin,etc,dev,proc,sys,tmp,run}
  cp "$(command -v busybox)" "$tree/bin/busybox"
  for applet in sh ls cat stat env test readlink; do ln -s busybox "$tree/bin/$applet"; done
}

make_trees() {
  local loader libc tree
  loader=$(readlink -f /lib64/ld-linux-x86-64.so.2 2>/dev/null || readlink -f /lib/ld-linux-aarch64.so.1)
  libc=$(ldd "$work/probe-glibc" | sed -n 's/.*libc\.so\.6 => \([^ ]*\).*/\1/p')

  tree=$work/debian
  base "$tree"
  mkdir -p "$tree/usr/lib/$triplet" "$tree/etc/ld.so.conf.d"
  ln -s usr/lib "$tree/lib"
  cp -L "$libc" "$tree/usr/lib/$triplet/libc.so.6"
  echo 12 >"$tree/etc/debian_version"
  echo 'include /etc/ld.so.conf.d/*.conf' >"$tree/etc/ld.so.conf"
  printf '/lib/%s\n/usr/lib/%s\n' "$triplet" "$triplet" >"$tree/etc/ld.so.conf.d/$triplet.conf"

  tree=$work/rhel
  base "$tree"
  mkdir -p "$tree/usr/lib64" "$tree/etc/ld.so.conf.d"
  ln -s usr/lib64 "$tree/lib64"
  cp -L "$libc" "$tree/usr/lib64/libc.so.6"
  echo 'Red Hat Enterprise Linux release 9' >"$tree/etc/redhat-release"
  echo 'include ld.so.conf.d/*.conf' >"$tree/etc/ld.so.conf"
  # The loader is Debian's, and does not know the directory by itself as that of Red Hat does.
  echo /usr/lib64 >"$tree/etc/ld.so.conf.d/system.conf"

  for tree in "$work/debian" "$work/rhel"; do
    mkdir -p "$tree$(dirname "$interpreter")"
    cp "$loader" "$tree$interpreter"
    cp "$work/probe-glibc" "$tree/bin/probe"
    /sbin/ldconfig -r "$tree"
  done

  tree=$work/alpine
  base "$tree"
  mkdir -p "$tree/lib"
  cp -L "/lib/ld-musl-$machine.so.1" "$tree/lib/"
  echo 3.22.0 >"$tree/etc/alpine-release"
  cp "$work/probe-musl" "$tree/bin/probe"
}

# --- containers

# What is checked in the container.
# shellcheck disable=SC2016 # for the shell in the container
readonly inside='
  set -eu
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
  nvidia-smi --version | grep -q "DRIVER version" || say "nvidia-smi says nothing"
  [ -z "${LIBRARIES_BY_HAND-}" ] || export LD_LIBRARY_PATH="$NVIDIA_CTK_LIBCUDA_DIR"
  probe
'

# In mount namespaces of their own: podman knows two directories of specs and no flag for others, and crun 1.8 refuses
# machines that mount cgroup v2 beside v1.
run_container() {
  local runtime=$1 family=$2 by_hand=$3 device tree gpus=
  shift 3
  local devices=()
  for device; do
    devices+=(--device "$device")
    gpus+=" ${device##*gpu-}"
  done
  # A runtime leaves mount points behind in the tree.
  tree=$(mktemp -d "$work/container.XXXX")
  cp -a "$work/$family/." "$tree"
  # shellcheck disable=SC2016 # for the shell that is started
  unshare --mount --propagation private sh -ec '
    umount /sys/fs/cgroup/unified 2>/dev/null || true
    mkdir -p /etc/cdi
    mount --bind "$FAKE_NODE_DIR/var/run/cdi" /etc/cdi
    exec "$@"
  ' sh podman --runtime "$runtime" --root "$work/storage" --runroot "$work/run" --cgroup-manager=cgroupfs \
    run --rm --network=none --ulimit nofile=1024:4096 --ulimit nproc=1000:1000 \
    "${devices[@]}" --env "GPUS=$gpus" --env "LIBRARIES_BY_HAND=$by_hand" --env PATH=/bin:/usr/bin \
    --volume "$FAKE_NODE_DIR/usr/bin/nvidia-smi.d:/usr/bin/nvidia-smi.d:ro" \
    --rootfs "$tree" sh -c "$inside" 2>"$tree.log" || {
    cat "$tree.log" >&2
    echo "FAILED: hook $hook, $runtime, $family, $*" >&2
    return 1
  }
}

# Runs beside a node with claims.
containers() {
  local version runtime family by_hand output count=0
  local claims devices
  version=$(basename "$FAKE_NODE_DIR/usr/lib/$triplet"/libcuda.so.*.*.* | sed 's/libcuda.so.//')
  cp "$work/libcuda.so" "$FAKE_NODE_DIR/usr/lib/$triplet/libcuda.so.$version"
  # Each pod's claim by itself, and a container with both, for which the hook runs twice.
  claims=$(echo "$FAKE_NODE_CDI_DEVICES"; echo "$FAKE_NODE_CDI_DEVICES" | tr '\n' ' ')
  while read -ra devices; do
    for runtime in runc crun; do
      for family in debian rhel alpine; do
        # Without a hook, images of another family than the host's have to be told where the libraries are.
        by_hand=
        [[ $hook == none && $family != debian ]] && by_hand=yes
        output=$(run_container "$runtime" "$family" "$by_hand" "${devices[@]}")
        [[ $output == "CUDA 13000 from "*libcuda.so.1 ]] || { echo "the probe says: $output" >&2; return 1; }
        count=$((count + 1))
      done
    done
  done <<<"$claims"
  echo "hook $hook: $count containers"
}

main() {
  [[ $(id -u) == 0 ]] || skip "this is not root"
  install_packages
  work=$(mktemp -d /tmp/XXXXXX)
  trap 'rm -rf "$work"' EXIT
  unshare --mount true 2>/dev/null || skip "this process may not make mount namespaces"
  [[ -e /etc/cdi ]] || trap 'rm -rf "$work"; rmdir /etc/cdi' EXIT
  make_libcuda
  make_probe
  make_trees
  local hooks=(none)
  if [[ -x $bin/gpu-dra-hook ]]; then
    hooks+=(own)
  else
    echo "there is no $bin/gpu-dra-hook: only --hook=none is tried" >&2
  fi
  export work
  for hook in "${hooks[@]}"; do
    export hook
    "$bin/fake-node" exec --topology dgx-h100 --plugin-flag="--hook=$hook" --pod "$root/deploy/examples/one-gpu/pod.yaml" \
      --pod "$root/deploy/examples/one-gpu/pod.yaml" -- "$self" "$bin" beside
  done
}

machine=$(uname -m)
triplet=$machine-linux-gnu
interpreter=/lib64/ld-linux-x86-64.so.2
[[ $machine == aarch64 ]] && interpreter=/lib/ld-linux-aarch64.so.1
if [[ ${2-} == beside ]]; then containers; else main; fi
