#!/usr/bin/env bash
# The coordinator's page in a real browser, with jobs and with one job's curves: page.sh BUILD. Ends
# with 77, for "skipped", where Chromium (Debian's chromium-headless-shell, or what MUSTER_TEST_BROWSER
# names) or node is not installed.
set -euo pipefail
build=$(realpath "$1") here=$(realpath "${BASH_SOURCE[0]%/*}")
browser=${MUSTER_TEST_BROWSER:-$(command -v chromium-headless-shell || command -v chromium || true)}
[ -n "$browser" ] || { echo "Chromium is not installed"; exit 77; }
command -v node >/dev/null || { echo "node is not installed"; exit 77; }

scratch=$(mktemp -d)
leave() {
  [ -z "${up:-}" ] || { kill "$up" && wait "$up"; } || true
  rm -rf "$scratch"
}
trap leave EXIT
export PATH=$build/bin:$PATH XDG_RUNTIME_DIR=$scratch
unset MUSTER_COORDINATOR MUSTER_TOKEN_FILE MUSTER_TLS_CA MUSTER_TLS_CERT MUSTER_TLS_KEY
cat >"$scratch/job.yaml" <<'YAML'
name: curved
model:
  parameters:
    w: {shape: [1], initializer: {kind: constant, scale: 0.5}}
  forward: |
    def forward(self, a):
        return self.w * a
data:
  csv:
    files: data.csv
    columns:
      a: {dtype: float32}
loss:
  function: |
    def loss(output):
        return (output * output).mean()
optimizer: {kind: sgd, learning_rate: 0.0001}
batch_size: 10
epochs: 200
checkpoint: {every_steps: 500}
strategy: {kind: parameter_server}
YAML
{ echo a; seq 100; } >"$scratch/data.csv"

muster up --ps 1 --workers 1 --state-dir "$scratch/state" >"$scratch/up.log" 2>&1 &
up=$!
muster status --wait ready --timeout 60s >/dev/null || { cat "$scratch/up.log"; exit 1; }
job=$(muster submit -f "$scratch/job.yaml" --wait) || { muster describe curved; exit 1; }
page=http://$(cat "$scratch/state/coordinator.admin")/
timeout 120 node "$here/page.js" "$browser" "$page" 'main table' curved
timeout 120 node "$here/page.js" "$browser" "$page#job/$job" '.chart path' JOB_SUCCEEDED
echo "wide and narrow, light and dark: nothing is wrong"
