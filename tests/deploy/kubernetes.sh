#!/usr/bin/env bash
# What kustomize and Kubernetes' own schemas say of deploy/kubernetes, of the base with every
# combination of components: kubernetes.sh SOURCE BUILD. Ends with 77, for "skipped", where kubectl or
# PyPI's kubernetes-validate is neither in BUILD/python-tools (tools/python-tools) nor installed.
set -euo pipefail
folder=$1/deploy/kubernetes
export PATH=$2/python-tools/bin:$PATH
for tool in kubectl kubernetes-validate; do
  command -v "$tool" >/dev/null || { echo "$tool is not installed: run tools/python-tools $2"; exit 77; }
done

# kustomize takes relative paths alone.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cp -r "$folder" "$scratch/kubernetes"
mkdir "$scratch/kubernetes/combined"
components=("$folder"/components/*/)
failed=0 judged=0

# judge WHAT FOLDER
judge() {
  local objects
  if ! kubectl kustomize "$2" >"$scratch/rendered.yaml"; then
    echo "$1 does not render"
    failed=1
    return
  fi
  # The PodMonitor is Prometheus' operator's, which the schemas do not have.
  sed '/^apiVersion: monitoring/,/^---/d' "$scratch/rendered.yaml" >"$scratch/known.yaml"
  if ! kubernetes-validate --strict "$scratch/known.yaml" >"$scratch/said" 2>&1; then
    echo "$1:"
    cat "$scratch/said"
    failed=1
  fi
  objects=$(grep -c '^kind:' "$scratch/rendered.yaml")
  echo "$1: $objects objects"
  judged=$((judged + 1))
}

judge "the example" "$scratch/kubernetes/cluster"
for ((set = 0; set < 1 << ${#components[@]}; set++)); do
  chosen=()
  for i in "${!components[@]}"; do
    ((set >> i & 1)) && chosen+=("../components/$(basename "${components[i]}")")
  done
  list=$(IFS=,; echo "${chosen[*]}")
  cat >"$scratch/kubernetes/combined/kustomization.yaml" <<END
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [../base]
components: [$list]
END
  judge "the base with [${list//..\/components\//}]" "$scratch/kubernetes/combined"
done
[ "$judged" -gt 2 ] || { echo "only $judged combinations were judged"; exit 1; }
exit "$failed"
