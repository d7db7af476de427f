#!/usr/bin/env bash
# The packages in a Debian 12 of their own: packages.sh BUILD [PACKAGES]. Makes them (cpack) unless a
# folder has them, makes a root with debootstrap, installs them there with what they need from
# Debian's mirror (MUSTER_TEST_MIRROR), starts `muster up`, trains a small job; builds examples with
# libmuster-dev, runs one by hand and, without libmuster-dev, submits another; removes and purges.
# Ends with 77, for "skipped", without root, debootstrap or the mirror.
set -euo pipefail
build=$(realpath "$1")
mirror=${MUSTER_TEST_MIRROR:-http://deb.debian.org/debian}
skip() { echo "skipped: $*"; exit 77; }
[ "$(id -u)" = 0 ] || skip "it takes root to make a Debian in a folder"
command -v debootstrap >/dev/null || skip "debootstrap is not installed"
unshare -m true || skip "no right to mount"
root=$(mktemp -d "$build/debian.XXXXXX")
trap 'rm -rf --one-file-system "$root"' EXIT
timeout 60 /usr/lib/apt/apt-helper download-file "$mirror/dists/bookworm/Release" "$root/Release" >/dev/null 2>&1 ||
  skip "$mirror does not answer"
rm -f "$root/Release"

packages=${2:-$build/packages}
if [ $# -lt 2 ]; then
  rm -rf "$packages"
  # With a umask that may not be seen in the packages.
  (umask 077 && cd "$build" && cpack >"$root/cpack.log" 2>&1) || { cat "$root/cpack.log"; exit 1; }
  rm -f "$root/cpack.log"
fi
for package in muster muster-daemons; do
  size=$(dpkg-deb -f "$packages/$package"_*_amd64.deb Installed-Size)
  echo "$package: $size KiB installed"
  # Stripped: with what debuggers read the daemons alone took some 300 MiB.
  [ "$size" -lt 102400 ] || { echo "$package takes $size KiB: is it stripped?"; exit 1; }
done
for package in muster muster-daemons libmuster-dev; do
  dpkg-deb -c "$packages/$package"_*_amd64.deb >"$root/list"
  if grep -vE '^(drwxr-xr-x|-rwxr-xr-x|-rw-r--r--|lrwxrwxrwx) root/root ' "$root/list"; then
    echo "$package has other modes than 755 and 644"
    exit 1
  fi
done
rm -f "$root/list"

debootstrap --variant=minbase bookworm "$root" "$mirror" >"$build/debootstrap.log" 2>&1 ||
  { tail -n 20 "$build/debootstrap.log"; exit 1; }
mkdir -p "$root/packages/sdk"
cp "$packages"/muster_*.deb "$packages"/muster-daemons_*.deb "$root/packages/"
cp "$packages"/libmuster-dev_*.deb "$root/packages/sdk/"
cp -r "${BASH_SOURCE[0]%/*}/../../examples/custom_loop" "${BASH_SOURCE[0]%/*}/../../examples/search" "$root/packages/"
cat >"$root/packages/job.yaml" <<'END'
name: small
model:
  parameters:
    w: {shape: [2], initializer: {kind: constant, scale: 0.5}}
  forward: |
    def forward(self, a, b):
        return (self.w * torch.stack([a, b], 1)).sum(1)
data:
  csv:
    files: data.csv
    columns:
      a: {dtype: float32}
      b: {dtype: float32}
loss:
  function: |
    def loss(output):
        return (output * output).mean()
optimizer: {kind: sgd, learning_rate: 0.01}
batch_size: 10
epochs: 2
strategy: {kind: parameter_server}
END
{ echo a,b; for i in $(seq 100); do echo "$((i % 7)),$((i % 5))"; done; } >"$root/packages/data.csv"
cat >"$root/packages/run" <<'END'
set -eux
export DEBIAN_FRONTEND=noninteractive
get() { apt-get install --yes --no-install-recommends "$@" >/packages/apt.log 2>&1 || { tail -n 20 /packages/apt.log; exit 1; }; }
get /packages/*.deb
muster --help >/dev/null
test -e /etc/muster/worker.yaml
for page in '' $(muster manual --list | sed 's/^/-/') -coordinator -ps -worker; do test -s "/usr/share/man/man1/muster$page.1"; done
test -e /etc/logrotate.d/muster-daemons
test -e /usr/share/bash-completion/completions/muster
test -e /usr/lib/systemd/system/muster-coordinator.service
cd /packages
# Its commands find its own cluster, whatever the caller's environment names.
unset MUSTER_COORDINATOR MUSTER_TOKEN_FILE XDG_RUNTIME_DIR
begin() {
  muster up --ps 1 --workers 1 >up.log 2>&1 &
  up=$!
  muster status --wait ready --timeout 60s || { cat up.log; exit 1; }
}
end() { kill "$up" && wait "$up"; }
begin
muster submit -f job.yaml --wait || { muster describe small; cat up.log; exit 1; }
muster checkpoints verify small
end
get /packages/sdk/*.deb cmake g++ make libopenblas0-pthread dataset-fashion-mnist
cmake -S custom_loop -B build -DCMAKE_BUILD_TYPE=Release >/dev/null
cmake --build build
MUSTER_DATA_CACHE=/packages/cache build/custom_loop mirrored
cmake -S search -B build_search -DCMAKE_BUILD_TYPE=Release >/dev/null
cmake --build build_search
# Hosts that run it have the library from muster-daemons.
apt-get remove --yes libmuster-dev >/dev/null
test ! -e /usr/include/muster
begin
muster submit --name search --wait -- build_search/search 6 || { muster logs search; cat up.log; exit 1; }
muster logs search chief:0 | grep ' best: '
end
mkdir -p /etc/systemd/system/muster.target.wants
ln -s /lib/systemd/system/muster-worker@.service /etc/systemd/system/muster.target.wants/muster-worker@7.service
apt-get remove --yes muster muster-daemons >/dev/null
test ! -e /etc/systemd/system/muster.target.wants
test ! -e /usr/bin/muster
test ! -e /usr/bin/muster-worker
test -e /etc/muster/worker.yaml
apt-get purge --yes muster muster-daemons >/dev/null
test ! -e /etc/muster/worker.yaml
test ! -e /var/cache/muster
find / -xdev -name '*muster*' -not -path '/packages/*' -not -path '/tmp/*' -not -path '/var/log/*' -not -path '/proc/*' >left
test ! -s left || { cat left; exit 1; }
END
# Its processes end with it, whatever happens.
# shellcheck disable=SC2016
unshare --mount --pid --fork --kill-child sh -euc '
  mount --make-rprivate /
  mount -t proc proc "$1/proc"
  mount -t tmpfs -o mode=1777 tmpfs "$1/dev/shm"
  exec chroot "$1" sh /packages/run' sh "$root"
echo "installed, trained, built with, submitted to, removed and purged"
