# shellcheck shell=bash
# Sourced by the tests of this folder: builds a project that uses an installed Muster, while the source
# tree is out of reach.
#   outside SOURCE BUILD LAUNCHER PROJECT   -> $folder, with build/ and prefix/
source_tree=$1 build_tree=$2 launcher=$3 project=$4
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

fail() {
  echo "${0##*/}: $*" >&2
  exit 1
}

for part in library sdk; do
  cmake --install "$build_tree" --prefix "$folder/prefix" --component "$part"
done > "$folder/install.log"
cp -r "$project" "$folder/project"
# What the test itself adds to the project.
if declare -F prepare > /dev/null; then prepare; fi

build() {
  cmake -S "$folder/project" -B "$folder/build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_PREFIX_PATH="$folder/prefix" -DCMAKE_CXX_COMPILER_LAUNCHER="$launcher"
  cmake --build "$folder/build" --parallel 2
}
export -f build
export folder launcher
# Another libtorch than Debian's, which may lie in the source tree (build/py), stays in reach.
torch=$(sed -n 's/^MUSTER_TORCH:PATH=//p' "$build_tree/CMakeCache.txt")
hide() {
  mkdir "$folder/torch"
  [ -z "$torch" ] || mount --bind "$torch" "$folder/torch"
  mount -t tmpfs none "$source_tree"
  [ -z "$torch" ] || { mkdir -p "$torch" && mount --bind "$folder/torch" "$torch"; }
}
export -f hide
export source_tree torch
# Where mounts are allowed, an empty folder covers the source tree. Elsewhere the list of files that
# the compiler has read is the only witness.
if unshare -m mount -t tmpfs none "$source_tree" 2> "$folder/unshare.log"; then
  echo "source tree: covered by an empty folder"
  unshare -m bash -euo pipefail -c "hide; cd /; build"
else
  echo "source tree: in place (mounts are not allowed here)"
  (cd / && build)
fi
ninja -C "$folder/build" -t deps > "$folder/deps"
if grep -F "$source_tree/" "$folder/deps" | grep -vF "${torch:-$folder}/"; then
  fail "the compiler read files of the source tree; see above"
fi
grep -qF "$folder/prefix/include/muster/muster.h" "$folder/deps" ||
  fail "the compiler did not read the installed muster.h"

# A program's own CHECK or LOG stays its own, and one that has none gets none.
# All of what ninja says is read: had it nobody to write to, pipefail would end this without a word.
compile=$(ninja -C "$folder/build" -t commands | sed -n 's/ -o [^ ]* -c / -E -dM /p')
compile=${compile%%$'\n'*}
leaked=$(cd "$folder/build" && eval "$compile" |
  { grep -oE '^#define (D|P|V|SYS)?(CHECK|LOG)(_[A-Z0-9_]+)?\b' || true; })
[ -z "$leaked" ] || fail "muster.h leaks macros of libtorch's logging: $leaked"
