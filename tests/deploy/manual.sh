#!/usr/bin/env bash
# Pages of the manual, as the package cli installs them: manual.sh BUILD. Each command and daemon has
# one, and groff has nothing to say against it (where it is installed).
set -euo pipefail
build=$1
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
cmake --install "$build" --component cli --prefix "$root" >/dev/null
pages=$root/share/man/man1
for daemon in coordinator ps worker; do
  "$build/bin/muster-$daemon" --manual >"$pages/muster-$daemon.1"
done

failed=0
mapfile -t commands < <("$build/bin/muster" manual --list)
for command in up submit top checkpoints certs version completion bench; do
  [[ " ${commands[*]} " == *" $command "* ]] || { echo "\"muster manual --list\" does not name $command"; failed=1; }
done
for page in muster "${commands[@]/#/muster-}" muster-{coordinator,ps,worker}; do
  file=$pages/$page.1
  if [ ! -s "$file" ] || ! grep -q '^\.SH SYNOPSIS' "$file"; then
    echo "$page has no page"
    failed=1
  elif command -v groff >/dev/null && ! said=$(groff -man -ww -z "$file" 2>&1) || [ -n "${said:-}" ]; then
    echo "$page.1: $said"
    failed=1
  fi
done
echo "$(find "$pages" -name '*.1' | wc -l) pages"
exit "$failed"
