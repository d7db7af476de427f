#!/usr/bin/env bash
# docs/operations.md followed to the letter on a host of its own: services.sh SOURCE BUILD. Its
# commands run as they stand there, in namespaces of their own (/etc, /var, /run, network, processes),
# without a systemd: `systemctl` is a function below that does what the units in deploy/systemd say of
# environment, credentials, user and groups, and starts what has ended as they say. Ends with 77, for
# "skipped", without root or namespaces.
set -euo pipefail
source_dir=$(realpath "$1") build=$(realpath "$2")

if [ -z "${MUSTER_TEST_INSIDE:-}" ]; then
  skip() { echo "skipped: $*"; exit 77; }
  [ "$(id -u)" = 0 ] || skip "it takes root to be another user"
  for tool in setpriv systemd-sysusers openssl ip; do
    command -v "$tool" >/dev/null || skip "$tool is not installed"
  done
  unshare --mount --net --pid --fork true || skip "no namespaces to be had here"
  # All of it ends with the first process.
  exec env MUSTER_TEST_INSIDE=1 unshare --mount --net --pid --fork --kill-child --mount-proc "$0" "$source_dir" "$build"
fi

ip link set lo up
mount --make-rprivate /
mount -t tmpfs tmpfs /mnt
for folder in etc var; do
  mkdir -p "/mnt/$folder/upper" "/mnt/$folder/work"
  mount -t overlay overlay -o "lowerdir=/$folder,upperdir=/mnt/$folder/upper,workdir=/mnt/$folder/work" "/$folder"
done
mount -t tmpfs -o mode=755 tmpfs /run
scratch=/mnt/scratch
mkdir -p "$scratch/home" "$scratch/bin" /etc/muster /etc/systemd/system/multi-user.target.wants
chmod 755 /mnt "$scratch"
# Where everybody may go, wherever the build is.
bin=$scratch/bin
mount --bind "$build/bin" "$bin"
export PATH=$bin:$PATH HOME=$scratch/home
cd "$HOME"
# A copy, into which drop-ins can be put.
units=$scratch/units
cp -r "$source_dir/deploy/systemd" "$units"
readonly THE_USER=61184 # of those that DynamicUser takes
fail() { echo "FAILED: $*" >&2; exit 1; }

# What the package brings and does first.
systemd-sysusers "$units"/sysusers.d/*.conf 2>/dev/null
for daemon in coordinator ps worker; do "muster-$daemon" --example-config >"/etc/muster/$daemon.yaml"; done

# setting UNIT KEY: its values, one a line, the drop-in's first.
setting() {
  local file=$units/${1%%@*}
  if [[ $1 == *@* ]]; then file+=@.service; else file+=.service; fi
  cat "$units/muster-.service.d/10-muster.conf" "$file" | sed -n "s/^$2=//p" | sed "s|%N|$1|g; s|%i|${1#*@}|g; s|%d|/run/credentials/$1|g"
}

# run_once UNIT: its process, as systemd would start it.
run_once() {
  local unit=$1 line words groups='' folder=/run/credentials/$1 environment=()
  while IFS= read -r line; do
    [ -e "${line#-}" ] || { [[ $line == -* ]] && continue; return 1; }
    while IFS= read -r words; do [[ $words == [A-Z]*=* ]] && environment+=("$words"); done <"${line#-}"
  done < <(setting "$unit" EnvironmentFile)
  mkdir -p "$folder"
  while IFS=: read -r line words; do
    install -o "$THE_USER" -m 400 "$words" "$folder/$line" || return 1
  done < <(setting "$unit" LoadCredential)
  while IFS= read -r line; do environment+=("$line"); done < <(setting "$unit" Environment)
  # What is in the environment file wins.
  while IFS= read -r line; do groups+=,$(getent group "$line" | cut -d: -f3); done < <(setting "$unit" SupplementaryGroups)
  for line in lib:STATE_DIRECTORY cache:CACHE_DIRECTORY; do
    install -d -o "$THE_USER" -g "$THE_USER" -m 700 "/var/${line%:*}/muster"
    environment+=("${line#*:}=/var/${line%:*}/muster")
  done
  install -d -o "$THE_USER" -g "$THE_USER" -m 700 /run/muster
  environment+=(RUNTIME_DIRECTORY=/run/muster "CREDENTIALS_DIRECTORY=$folder")
  read -ra words <<<"$(setting "$unit" ExecStart)"
  setpriv --reuid "$THE_USER" --regid "$THE_USER" --groups "$THE_USER$groups" --no-new-privs --bounding-set=-all \
    env -i PATH=/usr/bin:/bin "${environment[@]}" "$bin/${words[0]##*/}" "${words[@]:1}"
}

# supervise UNIT: starts it anew, as Restart= and the like say. How often it has begun: UNIT.starts.
supervise() {
  local unit=$1 starts=0 code
  while true; do
    starts=$((starts + 1))
    echo "$starts" >"$scratch/$unit.starts"
    code=0
    run_once "$unit" >>"$scratch/$unit.log" 2>&1 &
    wait $! || code=$?
    echo "ended with $code" >>"$scratch/$unit.log"
    [ ! -e "$scratch/$unit.stopped" ] || return 0
    if [[ " $(setting "$unit" RestartPreventExitStatus) " == *" $code "* ]]; then
      echo "not started anew" >>"$scratch/$unit.log"
      return 0
    fi
    sleep "$(setting "$unit" RestartSec)"
  done
}

pids_of() { pgrep -f -- "$bin/$(basename "$(setting "$1" ExecStart | cut -d' ' -f1)") $(setting "$1" ExecStart | cut -d' ' -f2-)" || true; }
start() {
  rm -f "$scratch/$1.stopped"
  supervise "$1" &
  echo $! >"$scratch/$1.supervisor"
}
stop() {
  local pid supervisor
  touch "$scratch/$1.stopped"
  for pid in $(pids_of "$1"); do kill "$pid" 2>/dev/null || true; done
  supervisor=$(cat "$scratch/$1.supervisor")
  wait "$supervisor" 2>/dev/null || true
}
# Type=notify: until it serves.
serves() { grep -qE 'serves on|listening on' "$scratch/$1.log"; }
systemctl() {
  local unit verb='' block=1
  for unit; do
    case $unit in
    --no-block) block= ;;
    -*) ;;
    enable | start | restart | stop | daemon-reload) verb=$unit ;;
    muster.target) ;;
    *)
      if [ "$verb" = restart ] || [ "$verb" = stop ]; then stop "$unit"; fi
      if [ "$verb" != stop ]; then
        : >"$scratch/$unit.log"
        start "$unit"
        [ -z "$block" ] || until_true 60 serves "$unit"
      fi
      ;;
    esac
  done
}
starts_of() { cat "$scratch/$1.starts"; }

# commands HEADING NUMBER: that block of commands below the heading of docs/operations.md.
commands() {
  awk -v heading="## $1" -v number="$2" '
    /^## / { inside = $0 == heading; next }
    inside && /^    / { if (!block) count++; block = 1; if (count == number) print substr($0, 5); next }
    inside && /^$/ && block { if (count == number) print ""; next }
    { block = 0 }' "$source_dir/docs/operations.md"
}
# as_written HEADING NUMBER [SED]: does it.
as_written() {
  commands "$1" "$2" | sed -e "${3:-}" >"$scratch/commands"
  [ -s "$scratch/commands" ] || fail "docs/operations.md has no block $2 below \"$1\""
  # Not with "|| fail": its own commands would fail unnoticed then.
  # shellcheck source=/dev/null
  . "$scratch/commands"
}
trap 'code=$?; [ "$code" = 0 ] || { set +x; echo "FAILED with $code" >&2; tail -n 20 "$scratch"/*.log >&2; }' EXIT
# until_true SECONDS COMMAND...
until_true() {
  local end=$((SECONDS + $1))
  shift
  until "$@" >/dev/null 2>&1; do
    [ "$SECONDS" -lt "$end" ] || fail "not in time: $*"
    sleep 0.1
  done
}
answers() { # HOST:PORT: with metrics
  exec 9<>"/dev/tcp/${1%:*}/${1#*:}" || return 1
  printf 'GET /metrics HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n' "$1" >&9
  grep -q '^muster_ready' <&9
}

echo "one host as a service"
as_written "One host as a service" 1
muster --coordinator 127.0.0.1:5000 --token-file /etc/muster/token status --wait ready --timeout 60s >/dev/null ||
  fail "the cluster is not ready"
targets=$(grep -o '127\.0\.0\.1:[0-9]*' "$source_dir/deploy/monitoring/prometheus.yaml")
[ "$(wc -l <<<"$targets")" = 4 ] || fail "prometheus.yaml has other targets than four"
for target in $targets; do until_true 10 answers "$target"; done

echo "the audit log is rotated"
muster --coordinator 127.0.0.1:5000 --token-file /etc/muster/token submit --name before --wait -- true >/dev/null
audited() {
  muster --coordinator 127.0.0.1:5000 --token-file /etc/muster/token backup "$scratch/backup" >/dev/null
  until_true 10 test -s /var/lib/muster/audit.log
}
audited
if command -v logrotate >/dev/null; then
  install -m 644 "$source_dir/deploy/debian/logrotate" "$scratch/logrotate"
  logrotate --force --state "$scratch/rotated" "$scratch/logrotate"
  if [ ! -s /var/lib/muster/audit.log.1 ] || [ -e /var/lib/muster/audit.log ]; then fail "it was not moved away"; fi
  audited
fi

echo "a backup is restored"
mkdir "$scratch/aside"
as_written "The coordinator's state" 1 \
  "s|/var/lib/private/muster|/var/lib/muster|g; s|/root/|$scratch/|; s|FILE|$scratch/backup|; s|/somewhere/else|$scratch/aside|"
cd "$HOME"
muster --coordinator 127.0.0.1:5000 --token-file /etc/muster/token status --wait ready --timeout 60s >/dev/null ||
  fail "the cluster is not ready with what was restored"
muster --coordinator 127.0.0.1:5000 --token-file /etc/muster/token describe before >/dev/null

echo "certificates"
muster certs init --dir certs >/dev/null
issue() {
  muster certs issue --dir certs --name node-3 --node chief:0 --node ps:0 --node worker:0 --node worker:1 \
    --host 127.0.0.1 >/dev/null
}
issue
muster certs issue --dir certs --submitter ana >/dev/null
daemons="muster-coordinator muster-ps@0 muster-worker@0 muster-worker@1"
as_written "Several hosts" 2
# shellcheck disable=SC2086
systemctl restart $daemons
ana=(--coordinator 127.0.0.1:5000 --tls-ca certs/ca.pem --tls-cert certs/ana.pem --tls-key certs/ana.key)
muster "${ana[@]}" status --wait ready --timeout 60s >/dev/null || fail "the cluster is not ready behind TLS"

echo "certificates are replaced, and nothing is restarted"
serial() {
  openssl s_client -connect 127.0.0.1:5000 -alpn h2 -cert certs/ana.pem -key certs/ana.key </dev/null 2>/dev/null |
    openssl x509 -noout -serial
}
before=$(serial)
issue
as_written "Several hosts" 3
changed() { [ "$(serial)" != "$before" ]; }
until_true 10 changed
muster "${ana[@]}" status --wait ready --timeout 10s >/dev/null || fail "it is not ready with other certificates"
for unit in $daemons; do
  ! grep -q 'ended with' "$scratch/$unit.log" || fail "$unit was restarted"
done

echo "a key without its certificate is waited for"
issue
systemctl stop muster-worker@1
install -g muster-tls -m 640 certs/node-3.key /etc/muster/tls/node.key
systemctl start --no-block muster-worker@1
again() { [ "$(starts_of muster-worker@1)" -ge 2 ] && grep -q "is not the key of" "$scratch/muster-worker@1.log"; }
until_true 20 again
install -m 644 certs/node-3.pem /etc/muster/tls/node.pem
muster "${ana[@]}" status --wait ready --timeout 60s >/dev/null || fail "it does not come back by itself"

echo "what a person has to mend is not tried again"
# ends_for_good CODE WORDS: worker 1, as it is set up now.
ends_for_good() {
  systemctl stop muster-worker@1
  systemctl start --no-block muster-worker@1
  until_true 20 grep -q '^ended with' "$scratch/muster-worker@1.log"
  # A daemon that came back would do so within a second.
  until_true 3 grep -q '^not started anew' "$scratch/muster-worker@1.log"
  grep -q "^ended with $1\$" "$scratch/muster-worker@1.log" || fail "worker 1 has not ended with $1"
  grep -q -- "$2" "$scratch/muster-worker@1.log" || fail "worker 1 does not say: $2"
  [ "$(starts_of muster-worker@1)" = 1 ] || fail "worker 1 was started anew"
}
echo 'TF_CONFIG={"cluster": ' >/etc/muster/muster-worker@1.env
ends_for_good 78 TF_CONFIG
echo 'MUSTER_STUCK_TIMEOUT=soon' >/etc/muster/muster-worker@1.env
ends_for_good 78 stuck-timeout
rm /etc/muster/muster-worker@1.env
cp /etc/muster/worker.yaml "$scratch/worker.yaml"
echo 'stuck-timeout: soon' >/etc/muster/worker.yaml
ends_for_good 78 stuck-timeout
cp "$scratch/worker.yaml" /etc/muster/worker.yaml
cp /etc/muster/token "$scratch/token"
echo 'much too short' >/etc/muster/token
ends_for_good 78 token
cp "$scratch/token" /etc/muster/token
sed -i '/^ExecStart=/s/$/ --no-such-flag/' "$units/muster-worker@.service"
ends_for_good 2 no-such-flag
sed -i '/^ExecStart=/s/ --no-such-flag$//' "$units/muster-worker@.service"
systemctl restart muster-worker@1
muster "${ana[@]}" status --wait ready --timeout 60s >/dev/null || fail "it does not come back when that is mended"

echo "removed"
links=(/etc/systemd/system/multi-user.target.wants/muster.target /etc/systemd/system/muster.target.wants/muster-worker@7.service)
mkdir -p /etc/systemd/system/muster.target.wants
for link in "${links[@]}"; do ln -s "/lib/systemd/system/${link##*/}" "$link"; done
sh "$source_dir/deploy/debian/prerm" remove
for link in "${links[@]}"; do [ ! -L "$link" ] || fail "$link is left"; done
echo "done"
