#!/usr/bin/env bash
# A host of its own, with a real systemd: host.sh SOURCE BUILD COMMAND [ARGUMENTS]. The machine's own
# files below an overlay, what BUILD has installed as the packages do, nothing enabled, no network but
# loopback; COMMAND runs there as root once systemd is up. Its exit code is that of COMMAND, and
# nothing that was written or started there is left. Ends with 77, for "skipped", where no such host
# can be made.
set -euo pipefail
source_dir=$(realpath "$1") build=$(realpath "$2")
shift 2

skip() { echo "skipped: $*"; exit 77; }
root=/mnt/root

# The host's first process: in its groups, which are all that it sees of this machine's.
if [ "${MUSTER_TEST_HOST:-}" = boot ]; then
  for group; do echo $$ >"$group/cgroup.procs"; done
  export MUSTER_TEST_HOST=booted
  exec unshare --cgroup "$0" "$source_dir" "$build" "$@"
fi
if [ "${MUSTER_TEST_HOST:-}" = booted ]; then
  mount -t proc proc "$root/proc"
  cd "$root/sys/fs/cgroup"
  if [ $# = 1 ]; then
    mount -t cgroup2 cgroup2 .
  else
    mount -t tmpfs -o mode=755 tmpfs .
    cd "$PWD"
    mkdir unified systemd
    mount -t cgroup2 cgroup2 unified
    mount -t cgroup -o none,name=systemd cgroup systemd
  fi
  # Not chroot alone, in which the kernel gives nobody a user namespace (PrivateUsers=).
  cd "$root"
  pivot_root . mnt
  exec env -i container=muster-test PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    chroot . sh -c "umount -l /mnt && mount --make-rshared / && exec /lib/systemd/systemd --system --unit=basic.target"
fi

if [ -z "${MUSTER_TEST_HOST:-}" ]; then
  [ "$(id -u)" = 0 ] || skip "it takes root to make a host"
  for tool in /lib/systemd/systemd systemctl systemd-sysusers nsenter ip; do
    command -v "$tool" >/dev/null || skip "$tool is not installed"
  done
  unshare --mount --net --pid --ipc --uts --cgroup --fork true 2>/dev/null || skip "no namespaces to be had here"
  # All of it ends with the first process.
  exec env MUSTER_TEST_HOST=1 unshare --mount --net --pid --ipc --uts --fork --kill-child --mount-proc \
    "$0" "$source_dir" "$build" "$@"
fi

ip link set lo up
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs /mnt
mkdir -p "$root" /mnt/upper /mnt/work /mnt/groups
mount -t overlay overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work "$root" || skip "no overlay to be had here"
for folder in "$source_dir" "$build"; do
  mkdir -p "$root$folder"
  mount --bind "$folder" "$root$folder"
done
# Read-only, as in every container: devices are not this host's to manage.
mount -t sysfs -o ro sysfs "$root/sys"
for folder in run tmp dev; do mount -t tmpfs -o mode=755 tmpfs "$root/$folder"; done
chmod 1777 "$root/tmp"
for device in null zero full random urandom tty; do
  touch "$root/dev/$device"
  mount --bind "/dev/$device" "$root/dev/$device"
done
touch "$root/dev/console"
mkdir -p "$root/dev/pts" "$root/dev/shm"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"

# What this machine has set up for itself is not started here.
rm -rf "$root/etc/systemd/system" "$root/etc/muster" "$root/var/lib/private/muster" "$root/var/cache/private/muster"
mkdir -p "$root/etc/systemd/system" "$root/root"
: >"$root/etc/machine-id"
echo host >"$root/etc/hostname"
DESTDIR=$root cmake --install "$build" --prefix /usr --strip >/mnt/install.log 2>&1 || { cat /mnt/install.log; exit 1; }

# Its control groups are below one of its own in each of this machine's hierarchies that systemd uses.
groups=() supervisor=
# shellcheck disable=SC2317
clean_up() {
  local group
  if [ -n "$supervisor" ]; then
    { kill -9 "$supervisor" || true; wait "$supervisor" || true; } 2>/dev/null
  fi
  for group in "${groups[@]}"; do
    for _ in $(seq 100); do
      find "$group" -depth -type d -exec rmdir {} + 2>/dev/null || true
      [ -e "$group" ] || break
      sleep 0.1
    done
  done
}
trap clean_up EXIT
while IFS=: read -r _ controllers _; do
  case $controllers in
  '') options=() ;;
  name=systemd) options=(-o "none,name=systemd") ;;
  cpuset | name=*) continue ;;
  *) options=(-o "$controllers") ;;
  esac
  mount_point=/mnt/groups/${controllers:-unified}
  mkdir "$mount_point"
  mount -t "cgroup$([ -n "$controllers" ] || echo 2)" "${options[@]}" cgroup "$mount_point" 2>/dev/null ||
    skip "no control groups to be had here"
  groups+=("$(mktemp -d "$mount_point/muster-test.XXXXXX")") || skip "control groups are not ours here"
done </proc/self/cgroup
MUSTER_TEST_HOST=boot unshare --mount --pid --fork --kill-child "$0" "$source_dir" "$build" "${groups[@]}" &
supervisor=$!

code=0
inside() { nsenter --target "$systemd" --mount --uts --pid --cgroup --root --wd=/ \
  env -i -C /root HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"; }
until_up() {
  local end=$((SECONDS + 60)) state=
  while [ "$SECONDS" -lt "$end" ]; do
    systemd=$(pgrep -P "$supervisor" || true)
    [ "$(cat "/proc/$systemd/comm" 2>/dev/null)" != systemd ] ||
      state=$(inside systemctl is-system-running 2>/dev/null || true)
    case $state in running | degraded) return 0 ;; esac
    kill -0 "$supervisor" 2>/dev/null || break
    sleep 0.1
  done
  echo "systemd does not come up here (${state:-it has ended})"
  return 1
}
if until_up; then inside "$@" || code=$?; else code=77; fi
exit "$code"
