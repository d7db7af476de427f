#!/usr/bin/env bash
# docs/operations.md followed to the letter under a real systemd: services.sh SOURCE BUILD. Its
# commands run as they stand there, on a host of its own (host.sh); the units are the package's, with
# all that they shut out. Ends with 77, for "skipped", where no such host can be made.
set -euo pipefail
source_dir=$(realpath "$1") build=$(realpath "$2")

if [ -z "${MUSTER_TEST_INSIDE:-}" ]; then
  command -v openssl >/dev/null || { echo "skipped: openssl is not installed"; exit 77; }
  exec "${BASH_SOURCE[0]%/*}/host.sh" "$source_dir" "$build" \
    env MUSTER_TEST_INSIDE=1 "$source_dir/tests/deploy/services.sh" "$source_dir" "$build"
fi

fail() { echo "FAILED: $*" >&2; exit 1; }
# until_true SECONDS COMMAND...
until_true() {
  local end=$((SECONDS + $1))
  shift
  until "$@" >/dev/null 2>&1; do
    [ "$SECONDS" -lt "$end" ] || fail "not in time: $*"
    sleep 0.1
  done
}
at_end() {
  local code=$?
  [ "$code" = 0 ] || { echo "FAILED with $code" >&2; journalctl --no-pager -n 60 -o cat >&2; }
}
trap at_end EXIT

# what UNIT KEY: what systemd knows of it.
what() { systemctl show -p "$2" --value "$1"; }
# What the unit's daemon has said since it was begun by hand.
said() { journalctl --no-pager -o cat -u "$1" --since "$(cat "/tmp/$1.begun" 2>/dev/null || echo 1970-01-01)"; }
says() { said "$1" | grep -qE -- "$2"; }
begun_now() { date +'%F %T.%N' >"/tmp/$1.begun"; }

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
  commands "$1" "$2" | sed -e "${3:-}" >/tmp/commands
  [ -s /tmp/commands ] || fail "docs/operations.md has no block $2 below \"$1\""
  # Not with "|| fail": its own commands would fail unnoticed then.
  # shellcheck source=/dev/null
  . /tmp/commands
}
# The cluster as a person with the token asks it.
cluster=(muster --coordinator 127.0.0.1:5000 --token-file /etc/muster/token)
ready() { "${cluster[@]}" status --wait ready --timeout 60s >/dev/null || fail "the cluster is not ready: $1"; }
answers() { # HOST:PORT: with metrics
  exec 9<>"/dev/tcp/${1%:*}/${1#*:}" || return 1
  printf 'GET /metrics HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n' "$1" >&9
  grep -q '^muster_ready' <&9
}
daemons="muster-coordinator muster-ps@0 muster-worker@0 muster-worker@1"

echo "one host as a service"
sh "$source_dir/deploy/debian/postinst" configure
as_written "One host as a service" 1
ready "after the first start"
targets=$(grep -o '127\.0\.0\.1:[0-9]*' "$source_dir/deploy/monitoring/prometheus.yaml")
[ "$(wc -l <<<"$targets")" = 4 ] || fail "prometheus.yaml has other targets than four"
for target in $targets; do until_true 10 answers "$target"; done

echo "what systemd says of them"
for unit in $daemons; do
  [ "$(what "$unit" ActiveState)" = active ] || fail "$unit is not active"
  [ "$(what "$unit" NRestarts)" = 0 ] || fail "$unit was restarted"
  status=/proc/$(what "$unit" MainPID)/status
  for line in 'NoNewPrivs:	1' 'Seccomp:	2' 'CapEff:	0000000000000000' 'CapBnd:	0000000000000000'; do
    grep -qx "$line" "$status" || fail "$unit has not $line: $(grep "${line%%:*}" "$status")"
  done
  user=$(stat -c %U "/proc/$(what "$unit" MainPID)")
  [ "$user" = muster ] || fail "$unit runs as $user"
done
attached() { [[ "$(what muster-worker@1 StatusText)" == *attached* ]]; }
until_true 10 attached
[ "$(systemctl is-enabled muster-worker@1)" = enabled ] || fail "muster-worker@1 is not enabled"

echo "jobs run behind all that the units shut out"
cat >job.yaml <<'END'
name: small
model:
  parameters:
    w: {shape: [2], initializer: {kind: constant, scale: 0.5}}
  forward: |
    def forward(self, a, b):
        return (self.w * torch.stack([a, b], 1)).sum(1)
data:
  csv:
    files: /srv/data.csv
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
checkpoint: {every_steps: 5}
strategy: {kind: parameter_server}
END
{ echo a,b; for i in $(seq 100); do echo "$((i % 7)),$((i % 5))"; done; } >/srv/data.csv
"${cluster[@]}" submit -f job.yaml --wait >job.log 2>&1 || { cat job.log; "${cluster[@]}" describe small; fail "a model job fails"; }
"${cluster[@]}" checkpoints verify small >/dev/null
"${cluster[@]}" submit --name words --strategy parameter_server --wait -- "$build/tests/programs/closures" sum 100 2 \
  >job.log 2>&1 || { cat job.log; "${cluster[@]}" describe words; fail "a program fails"; }
"${cluster[@]}" logs words | grep -q 'sum 5050' || fail "the program has another sum"
"${cluster[@]}" submit --name together --strategy multi_worker_mirrored --workers 2 --wait -- \
  "$build/tests/programs/multi_worker" 20 >job.log 2>&1 || { cat job.log; "${cluster[@]}" describe together; fail "a group fails"; }
"${cluster[@]}" submit --name command --wait -- sh -c 'touch /etc/by-a-job || touch /usr/by-a-job || ls /root/*' \
  >job.log 2>&1 && fail "a job writes to /etc or sees /root"

echo "who is killed is back"
before=$(what muster-ps@0 MainPID)
kill -9 "$before"
again() { [ "$(what muster-ps@0 ActiveState)" = active ] && [ "$(what muster-ps@0 MainPID)" != "$before" ]; }
until_true 20 again
[ "$(what muster-ps@0 NRestarts)" = 1 ] || fail "muster-ps@0 was restarted $(what muster-ps@0 NRestarts) times"
ready "after kill -9 of ps:0"

echo "a daemon that stands still is ended by the watchdog and back"
mkdir /run/systemd/system/muster-worker@0.service.d
printf '[Service]\nWatchdogSec=3\nTimeoutAbortSec=2\n' >/run/systemd/system/muster-worker@0.service.d/watchdog.conf
systemctl daemon-reload
systemctl restart muster-worker@0
before=$(what muster-worker@0 MainPID)
kill -STOP "$before"
stood_still() { says muster-worker@0 'Watchdog timeout' && [ "$(what muster-worker@0 ActiveState)" = active ]; }
until_true 30 stood_still
[ ! -e "/proc/$before" ] || fail "the process that stood still is still there"
rm -r /run/systemd/system/muster-worker@0.service.d
systemctl daemon-reload
systemctl restart muster-worker@0
ready "after the watchdog"

echo "an upgrade under a running job"
sed 's/^name: .*/name: long/; s/^epochs: .*/epochs: 100000/; s/every_steps: 5/every_steps: 1000/' job.yaml >long.yaml
"${cluster[@]}" submit -f long.yaml >/dev/null
trains() { "${cluster[@]}" describe long | grep -qE 'RUNNING'; }
until_true 30 trains
sh "$source_dir/deploy/debian/postinst" configure
for unit in $daemons; do [ "$(what "$unit" Result)" = success ] || fail "$unit ended by $(what "$unit" Result)"; done
ready "after the upgrade"
until_true 30 trains
# Draining saves what a parameter server has in memory alone.
"${cluster[@]}" describe long | grep 'JOB_RESTORED .* no step is lost' >/dev/null ||
  { "${cluster[@]}" describe long; fail "steps were lost"; }

echo "a worker is taken out and let in again"
"${cluster[@]}" drain worker:1 >/dev/null
systemctl stop muster-worker@1
[ "$(what muster-worker@1 Result)" = success ] || fail "worker 1 ended by $(what muster-worker@1 Result)"
systemctl start muster-worker@1
"${cluster[@]}" undrain worker:1 >/dev/null
ready "with worker 1 again"
"${cluster[@]}" stop long >/dev/null

echo "a daemon that drains for longer than TimeoutStopSec= says so"
mkdir -p /run/systemd/system/muster-worker@{0,1}.service.d
for unit in 0 1; do
  printf '[Service]\nTimeoutStopSec=2\n' >"/run/systemd/system/muster-worker@$unit.service.d/stop.conf"
done
systemctl daemon-reload
"${cluster[@]}" submit --name slow -- sh -c 'trap "sleep 5; exit 0" TERM; echo begun; sleep 600 & wait' \
  >/dev/null
begun() { "${cluster[@]}" logs slow | grep -q begun; }
until_true 30 begun
slow=$(pgrep -f 'sleep 600' | head -n 1)
unit=$(systemctl status "$slow" | grep -o 'muster-worker@[01]' | head -n 1)
began=$SECONDS
systemctl stop "$unit"
[ "$(what "$unit" Result)" = success ] || fail "$unit ended by $(what "$unit" Result)"
[ "$((SECONDS - began))" -ge 4 ] || fail "$unit did not wait for what it had launched"
rm -r /run/systemd/system/muster-worker@{0,1}.service.d
systemctl daemon-reload
systemctl start "$unit"
"${cluster[@]}" stop slow >/dev/null
ready "after a slow end"

echo "the audit log is rotated"
audited() {
  "${cluster[@]}" backup /tmp/backup >/dev/null
  until_true 10 test -s /var/lib/muster/audit.log
}
audited
if command -v logrotate >/dev/null; then
  logrotate --force --state /tmp/rotated /etc/logrotate.d/muster-daemons
  if [ ! -s /var/lib/muster/audit.log.1 ] || [ -e /var/lib/muster/audit.log ]; then fail "it was not moved away"; fi
  audited
fi

echo "a backup is restored"
mkdir /tmp/aside
as_written "The coordinator's state" 1 "s|FILE|/tmp/backup|; s|/somewhere/else|/tmp/aside|"
cd /root
ready "with what was restored"
"${cluster[@]}" describe small >/dev/null

echo "certificates"
muster certs init --dir certs >/dev/null
issue() {
  muster certs issue --dir certs --name node-3 --node chief:0 --node ps:0 --node worker:0 --node worker:1 \
    --host 127.0.0.1 >/dev/null
}
issue
muster certs issue --dir certs --submitter ana >/dev/null
as_written "Several hosts" 2
# shellcheck disable=SC2086
systemctl restart $daemons
cluster=(muster --coordinator 127.0.0.1:5000 --tls-ca certs/ca.pem --tls-cert certs/ana.pem --tls-key certs/ana.key)
ready "behind TLS"

echo "certificates are replaced, and nothing is restarted"
serial() {
  openssl s_client -connect 127.0.0.1:5000 -alpn h2 -cert certs/ana.pem -key certs/ana.key </dev/null 2>/dev/null |
    openssl x509 -noout -serial
}
processes() { for unit in $daemons; do what "$unit" MainPID; done; }
serial_before=$(serial) processes_before=$(processes)
issue
as_written "Several hosts" 3
changed() { [ "$(serial)" != "$serial_before" ]; }
until_true 10 changed
ready "with other certificates"
[ "$(processes)" = "$processes_before" ] || fail "a daemon was restarted"

echo "a key without its certificate is waited for"
issue
systemctl stop muster-worker@1
install -g muster-tls -m 640 certs/node-3.key /etc/muster/tls/node.key
begun_now muster-worker@1
systemctl start --no-block muster-worker@1
waits() { [ "$(what muster-worker@1 NRestarts)" -ge 1 ] && says muster-worker@1 "is not the key of"; }
until_true 20 waits
install -m 644 certs/node-3.pem /etc/muster/tls/node.pem
ready "with the certificate of the key"

echo "a token that is not there is waited for"
systemctl stop muster-worker@1
mv /etc/muster/token /tmp/token
systemctl start --no-block muster-worker@1
no_token() { [ "$(what muster-worker@1 NRestarts)" -ge 1 ] && [ "$(what muster-worker@1 ExecMainStatus)" = 243 ]; }
until_true 20 no_token
mv /tmp/token /etc/muster/token
ready "with the token"

echo "what a person has to mend is not tried again"
# ends_for_good CODE WORDS: worker 1, as it is set up now.
ends_for_good() {
  systemctl stop muster-worker@1
  begun_now muster-worker@1
  systemctl start muster-worker@1 2>/dev/null && fail "worker 1 has begun"
  [ "$(what muster-worker@1 ActiveState)" = failed ] || fail "worker 1 is $(what muster-worker@1 ActiveState)"
  [ "$(what muster-worker@1 ExecMainStatus)" = "$1" ] || fail "worker 1 ended with $(what muster-worker@1 ExecMainStatus)"
  [ "$(what muster-worker@1 NRestarts)" = 0 ] || fail "worker 1 was started anew"
  says muster-worker@1 "$2" || fail "worker 1 does not say: $2"
}
echo 'TF_CONFIG={"cluster": ' >/etc/muster/muster-worker@1.env
ends_for_good 78 TF_CONFIG
echo 'MUSTER_STUCK_TIMEOUT=soon' >/etc/muster/muster-worker@1.env
ends_for_good 78 stuck-timeout
rm /etc/muster/muster-worker@1.env
cp /etc/muster/worker.yaml /tmp/worker.yaml
echo 'stuck-timeout: soon' >/etc/muster/worker.yaml
ends_for_good 78 stuck-timeout
cp /tmp/worker.yaml /etc/muster/worker.yaml
cp /etc/muster/token /tmp/token
echo 'much too short' >/etc/muster/token
ends_for_good 78 token
cp /tmp/token /etc/muster/token
mkdir /run/systemd/system/muster-worker@1.service.d
printf '[Service]\nExecStart=\nExecStart=/usr/bin/muster-worker --no-such-flag\n' \
  >/run/systemd/system/muster-worker@1.service.d/flag.conf
systemctl daemon-reload
ends_for_good 2 no-such-flag
rm -r /run/systemd/system/muster-worker@1.service.d
systemctl daemon-reload
systemctl restart muster-worker@1
ready "when that is mended"

echo "removed"
sh "$source_dir/deploy/debian/prerm" remove
for unit in $daemons; do
  [ "$(what "$unit" ActiveState)" = inactive ] || fail "$unit is $(what "$unit" ActiveState)"
  [ "$(what "$unit" Result)" = success ] || fail "$unit ended by $(what "$unit" Result)"
  [ "$(systemctl is-enabled "$unit")" != enabled ] || fail "$unit is still enabled"
done
[ -z "$(find /etc/systemd/system -name 'muster*')" ] || fail "links are left: $(find /etc/systemd/system -name 'muster*')"
! pgrep -u muster >/dev/null 2>&1 || fail "processes are left"
echo "done"
