#!/usr/bin/env bash
# promtool's judgement of our metrics and of deploy/monitoring: monitoring.sh SOURCE BUILD. Ends with
# 77, for "skipped", where promtool (Debian's package prometheus) is not installed.
set -euo pipefail
source_dir=$1 build=$2
command -v promtool >/dev/null || { echo "promtool is not installed"; exit 77; }

# It also ends with 3 where it has mere advice.
"$build/tests/metrics_page" --sample | promtool check metrics
promtool check rules --lint-fatal "$source_dir/deploy/monitoring/alerts.yaml"
promtool check config --syntax-only "$source_dir/deploy/monitoring/prometheus.yaml"
promtool test rules "$source_dir/deploy/monitoring/alerts_test.yaml"
