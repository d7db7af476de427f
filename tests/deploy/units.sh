#!/usr/bin/env bash
# systemd's own judgement of deploy/systemd: units.sh SOURCE BUILD. Nothing is started. Ends with 77,
# for "skipped", where systemd-analyze is not installed.
set -euo pipefail
source_dir=$1 build=$2
# What a person has to mend is not tried again; all else is (docs/operations.md).
common=$source_dir/deploy/systemd/muster-.service.d/10-muster.conf
for line in Restart=always 'RestartPreventExitStatus=2 78'; do
  [ "$(grep -h "^${line%%=*}=" "$common" "$source_dir"/deploy/systemd/*.service)" = "$line" ] ||
    { echo "the units do not have one $line"; exit 1; }
done
command -v systemd-analyze >/dev/null || { echo "systemd-analyze is not installed"; exit 77; }
readonly WEAKEST=20 # of 100: 2.0 in its own words

# A root with the units where the package puts them, and the programs that they start.
root=$(mktemp -d "$build/units.XXXXXX")
trap 'rm -rf "$root"' EXIT
mkdir -p "$root/usr/bin" "$root/usr/lib/systemd/system" "$root/etc/muster"
ln -s usr/lib "$root/lib"
cp -r "$source_dir"/deploy/systemd/. "$root/usr/lib/systemd/system/"
for program in coordinator ps worker; do
  ln "$build/bin/muster-$program" "$root/usr/bin/"
done
# Targets that Debian's systemd has.
for target in network-online multi-user sysinit basic shutdown; do
  printf '[Unit]\nDescription=%s\n' "$target" >"$root/usr/lib/systemd/system/$target.target"
done
# The drop-in that docs/operations.md has for a folder that daemons write to, and the one for GPUs.
sed -n '/^      for unit/,/^      done/s/^      //p' "$source_dir/docs/operations.md" |
  sed "s|/etc/systemd|$root/etc/systemd|g" | bash -eu
install -D -m 644 "$source_dir/deploy/systemd/gpu.conf" "$root/etc/systemd/system/muster-worker@.service.d/gpu.conf"
for unit in muster-coordinator muster-ps@ muster-worker@; do
  grep -q '^ReadWritePaths=' "$root/etc/systemd/system/$unit.service.d/checkpoints.conf"
done

failed=0
for unit in muster-coordinator.service muster-ps@0.service muster-worker@1.service muster-evaluator.service muster.target; do
  # It ends with 0 also where it says that it does not know a key.
  if ! said=$(systemd-analyze verify --man=no --root="$root" "$unit" 2>&1) || [ -n "$said" ]; then
    printf '%s: %s\n' "$unit" "$said"
    failed=1
  fi
  [ "$unit" != muster.target ] || continue
  if ! systemd-analyze security --root="$root" --offline=true --threshold="$WEAKEST" --no-pager "$unit" >"$root/said" 2>&1; then
    cat "$root/said"
    failed=1
  fi
  tail -n 1 "$root/said"
done
exit "$failed"
