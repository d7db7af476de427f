#!/usr/bin/env bash
# The image of deploy/container, from the packages of deploy_packages: image.sh SOURCE BUILD [SOURCES].
# Builds it, reads its archive, and runs tests/cluster/pods_test.cc with its root under every pod.
# SOURCES is a list of apt's for the build. Ends with 77, for "skipped", without root or its tools.
set -euo pipefail
source=$(realpath "$1") build=$(realpath "$2")
skip() { echo "skipped: $*"; exit 77; }
[ "$(id -u)" = 0 ] || skip "it takes root to make an image"
for tool in mmdebstrap buildah; do
  command -v "$tool" >/dev/null || skip "$tool is not installed"
done
compgen -G "$build/packages/muster_*.deb" >/dev/null || skip "$build/packages has no packages: deploy_packages makes them"
unshare -m true || skip "no right to mount"
scratch=$(mktemp -d "$build/image.XXXXXX")
trap 'rm -rf --one-file-system "$scratch"' EXIT

"$source/deploy/container/build" "$build/packages" "$scratch/muster.oci" "${@:3}" 2>"$scratch/log" |
  tee "$scratch/said" || { tail -n 30 "$scratch/log"; exit 1; }
name=$(head -n 1 "$scratch/said")
mkdir "$scratch/oci" "$scratch/root"
tar -xf "$scratch/muster.oci" -C "$scratch/oci"
config() {
  /usr/bin/python3 - "$scratch/oci" <<'END'
import json, pathlib, sys
oci = pathlib.Path(sys.argv[1])
blob = lambda digest: json.loads((oci / "blobs" / digest.replace(":", "/")).read_text())
index = json.loads((oci / "index.json").read_text())["manifests"][0]
image = blob(blob(index["digest"])["config"]["digest"])["config"]
print(index["annotations"]["org.opencontainers.image.ref.name"], image["User"])
END
}
told=$(config)
[ "$told" = "$name 10001:10001" ] || { echo "the archive says \"$told\", not \"$name 10001:10001\""; exit 1; }
grep -q "image: $name\$" -r "$source/deploy/kubernetes" || { echo "no manifest asks for $name"; exit 1; }

tar -xf "$scratch/muster.oci.tar" -C "$scratch/root" --exclude './dev/*'
test ! -e "$scratch/root/tmp/muster" || { echo "the packages are left in it"; exit 1; }
chroot "$scratch/root" muster --version
MUSTER_TEST_IMAGE=$scratch/root "$build/tests/cluster_pods_test"
