#!/usr/bin/env bash
# Does the product still say what docs/operations.md looks up ("When something is wrong")?
# messages.sh SOURCE. "..." stands for what differs from case to case.
set -euo pipefail
cd "$1"
# Literals that go on in the next line are one.
said=$(mktemp)
trap 'rm -f "$said"' EXIT
find cli common coordinator ps services worker -name '*.cc' -o -name '*.h' | sort | xargs cat |
  perl -0pe 's/"\s*\n\s*"//g; s/\\"/"/g' >"$said"

failed=0 count=0
while IFS= read -r message; do
  count=$((count + 1))
  while IFS= read -r part; do
    if [ -n "$part" ] && ! grep -qF -- "$part" "$said"; then
      echo "nobody says \"$part\" any more (docs/operations.md: $message)"
      failed=1
    fi
  done <<<"${message//.../$'\n'}"
done < <(awk -F'|' '/^## / { inside = $0 == "## When something is wrong" } inside && /^\| `/ { print $2 }' \
  docs/operations.md | awk -F'`' '{ for (i = 2; i <= NF; i += 2) print $i }')
[ "$count" -ge 20 ] || { echo "only $count messages found"; exit 1; }
echo "$count messages"
exit "$failed"
