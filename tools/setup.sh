# shellcheck shell=bash
# Sourced by ./muster-demo and ./muster-test from the repository's root: packages and the build.
# Everything it says goes to stderr.

say() { printf '%s\n' "$*" >&2; }
die() {
  say "error: $*"
  exit 1
}

# packages_of GROUP...: the names in tools/packages that belong to the groups.
packages_of() {
  local group
  for group in "$@"; do
    awk -v group="$group" '$1 == group { print $2 }' tools/packages
  done
}

# The packages among the arguments that dpkg does not have.
missing_of() {
  local package
  for package in "$@"; do
    dpkg-query -W -f='${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed ||
      printf '%s\n' "$package"
  done
}

is_debian() {
  # shellcheck source=/dev/null
  [ -r /etc/os-release ] && (. /etc/os-release && [ "${ID:-}" = debian ]) && command -v dpkg-query >/dev/null
}

# need_packages GROUP...: installs what is missing. MUSTER_SKIP_PACKAGES=1: trusts what is there.
need_packages() {
  [ -z "${MUSTER_SKIP_PACKAGES:-}" ] || return 0
  local packages missing as_root=()
  mapfile -t packages < <(packages_of "$@")
  if ! is_debian; then
    say "This is not Debian, so nothing is installed here. Muster needs what Debian 12 calls:"
    printf '  %s\n' "${packages[@]}" >&2
    say "Install the like, then run again with MUSTER_SKIP_PACKAGES=1."
    exit 1
  fi
  mapfile -t missing < <(missing_of "${packages[@]}")
  [ "${#missing[@]}" -gt 0 ] || return 0
  say "Missing packages: ${missing[*]}"
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null ||
      die "installing them needs root, and there is no sudo; as root: apt-get install ${missing[*]}"
    as_root=(sudo)
  fi
  local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -y -q -o Dpkg::Use-Pty=0)
  "${as_root[@]}" "${apt[@]}" update >&2 || die "apt-get update failed"
  "${as_root[@]}" "${apt[@]}" install --no-install-recommends "${missing[@]}" >&2 ||
    die "apt-get install failed; see above"
}

# build_release TARGET: configures (quick when nothing changed) and builds with the release preset.
build_release() {
  local log=build/configure.log
  mkdir -p build
  cmake --preset release >"$log" 2>&1 || {
    cat "$log" >&2
    die "cmake could not configure"
  }
  cmake --build --preset release --parallel "$(($(nproc) + 1))" --target "$1" >&2 || die "the build failed"
}

# timed NAME COMMAND...: runs it and remembers its wall time for print_times.
TIMES=()
timed() {
  local name=$1 begin=$SECONDS
  shift
  "$@"
  TIMES+=("$name $((SECONDS - begin)) s")
}

print_times() {
  local IFS=,
  say "wall time: ${TIMES[*]}"
}
