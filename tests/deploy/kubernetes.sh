#!/usr/bin/env bash
# What kustomize and Kubernetes' own schemas say of deploy/kubernetes: kubernetes.sh SOURCE. Ends with
# 77, for "skipped", where kubectl or PyPI's kubernetes-validate is not installed.
set -euo pipefail
folder=$1/deploy/kubernetes
command -v kubectl >/dev/null || { echo "kubectl is not installed"; exit 77; }
command -v kubernetes-validate >/dev/null || { echo "kubernetes-validate is not installed (pip install kubernetes-validate)"; exit 77; }

rendered=$(mktemp)
trap 'rm -f "$rendered"' EXIT
failed=0
for part in base overlays/tls overlays/gpu overlays/monitoring; do
  if ! kubectl kustomize "$folder/$part" >"$rendered"; then
    failed=1
    continue
  fi
  # The PodMonitor is Prometheus' operator's, which the schemas do not have.
  if [ "$part" = overlays/monitoring ]; then
    sed -i -n '/^apiVersion: monitoring/,/^---/!p' "$rendered"
  fi
  kubernetes-validate --strict "$rendered" || failed=1
done
exit "$failed"
