#!/usr/bin/env bash
# Are the commands that pages and READMEs show those that `muster` and the daemons take? Each command,
# subcommand and flag is looked for in --help: commands.sh SOURCE BUILD. Nothing is run but that.
set -euo pipefail
cd "$1"
bin=$2/bin

# A command a line, with its file: from blocks of code, from `muster ...` in prose, and from cli.md's
# table, which leaves out "muster". What stands behind " -- " is the program's.
shown() {
  find README.md docs examples deploy cli -name '*.md' | sort | while IFS= read -r file; do
    perl -0ne '
      my $text = $_;
      my $command = qr/muster(?:-coordinator|-ps|-worker)?/;
      my @found;
      (my $blocks = $text) =~ s/\\\n\s+/ /g;
      for my $line (grep { /^ {4}/ } split /\n/, $blocks) {
        push @found, $1 while $line =~ /(?:^\s+|[|;&(]\s*|\bdo\s+|\btime\s+)(?:\$ )?(?:[A-Z_]+=\S+\s+)*($command\s[^|;&#)>]*)/g;
      }
      push @found, $1 while $text =~ /`($command\s[a-z-][^`|;&]*)`/g;
      if ($ARGV eq "docs/cli.md") { push @found, "muster $1" while $text =~ /^\| `([a-z][^`]*)` \|/mg; }
      for (@found) {
        s/\s-- .*//s; s/\s+/ /g; s/[\[\]",.]+(?= |$)| \[|"/ /g; s/\\\|/ /g;
        print "$ARGV\t$_\n";
      }' "$file"
  done
}

declare -A help=()
# help_of PROGRAM [WORDS]: what it says of itself, once asked for.
help_of() {
  [ -n "${help[$*]+set}" ] || help[$*]=$("$bin/$1" "${@:2}" --help 2>&1)
  said=${help[$*]}
}
# has NAME LINES: whether a line of --help begins with it.
has() { grep -qE -- "^ +(-[a-z],)?$1([ {,:]|\$)" <<<"$2"; }

failed=0 count=0
wrong() {
  echo "$file: $command: $1"
  failed=1
}
while IFS=$'\t' read -r file command; do
  read -ra words <<<"$command"
  path=("${words[0]}")
  count=$((count + 1))
  flags=() i=1
  # Flags of the whole program come first, all but these with a value.
  while [[ ${words[i]:-} == --* ]]; do
    flags+=("${words[i]}")
    [[ ${words[i]} =~ ^--(version|help)$ || ${words[i]} == *=* ]] || i=$((i + 1))
    i=$((i + 1))
  done
  help_of "${path[@]}"
  all=$said
  # As deep as there are subcommands.
  while grep -q '^Subcommands:' <<<"$said" && [[ ${words[i]:-} =~ ^[a-z-]+$ && ${words[i]} != -* ]]; do
    if ! has "${words[i]}" "$(sed '1,/^Subcommands:/d' <<<"$said")"; then
      wrong "there is no command ${words[i]}"
      break
    fi
    path+=("${words[i]}")
    i=$((i + 1))
    [ "${path[1]}" != bench ] || break
    help_of "${path[@]}"
  done
  # muster-bench has flags of its own.
  [ "${path[1]:-}" != bench ] || continue
  for word in "${words[@]:i}"; do
    [[ ! $word =~ ^(--[a-z-]*[a-z](=.*)?|-[a-z])$ ]] || flags+=("$word")
  done
  for flag in ${flags[@]+"${flags[@]}"}; do
    flag=${flag%%=*}
    has "$flag" "$said" || has "$flag" "$all" || wrong "${path[*]} has no $flag"
  done
done < <(shown | sort -u)
[ "$count" -ge 100 ] || { echo "only $count commands found"; exit 1; }
echo "$count commands"
exit "$failed"
