#!/usr/bin/env bash
# Checks that a real kubectl can work with an API server: every verb that people use, on every type that it serves.
#
#   hack/checks/kubectl.sh KUBECONFIG KUBECTL
#
# The server must have a node. Objects are named kubectl-check-… and removed at the end.
set -euo pipefail

if [[ $# -ne 2 ]]; then
    echo "usage: $0 KUBECONFIG KUBECTL" >&2
    exit 64
fi
kubeconfig=$1
kubectl=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

k() {
    # No cache: the server of the last run may have played another release.
    "$kubectl" --kubeconfig "$kubeconfig" --cache-dir "$work/cache" --request-timeout 20s "$@"
}

# expect TEXT COMMAND...: the command succeeds, and its output has the text.
expect() {
    local text=$1 output
    shift
    if ! output=$("$@" 2>&1); then
        printf 'FAILED: %s\n%s\n' "$*" "$output" >&2
        exit 1
    fi
    if [[ $output != *"$text"* ]]; then
        printf 'NOT FOUND in the output of %s: %s\n%s\n' "$*" "$text" "$output" >&2
        exit 1
    fi
}

# refuse TEXT COMMAND...: the command fails, and says the text.
refuse() {
    local text=$1 output
    shift
    if output=$("$@" 2>&1); then
        printf 'SHOULD HAVE FAILED: %s\n%s\n' "$*" "$output" >&2
        exit 1
    fi
    if [[ $output != *"$text"* ]]; then
        printf 'NOT FOUND in the failure of %s: %s\n%s\n' "$*" "$text" "$output" >&2
        exit 1
    fi
}

node=$(k get nodes --output 'jsonpath={.items[0].metadata.name}')
version=$(k api-resources --api-group resource.k8s.io --no-headers | awk 'NR == 1 { print $(NF - 2) }')
echo "node $node, $version, $(k version --output json | awk -F'"' '/"gitVersion"/ { v = $4 } END { print "server " v }')"

echo '- version, discovery'
expect 'Server Version: v1.' k version
for type in nodes pods events namespaces; do
    expect "$type" k api-resources --namespaced="$([[ $type == pods || $type == events ]] && echo true || echo false)"
done
for type in deviceclasses resourceclaims resourceclaimtemplates resourceslices; do
    expect "$type" k api-resources --api-group resource.k8s.io
done
expect events.k8s.io/v1 k api-versions
expect driver k explain resourceslice.spec

# v1beta1 has devices under "basic", and requests without "exactly".
flat=false
if [[ $version == */v1beta1 ]]; then
    flat=true
fi
device() { # NAME
    if $flat; then
        echo "{name: $1, basic: {attributes: {model: {string: A100}}, capacity: {memory: {value: 40960Mi}}}}"
    else
        echo "{name: $1, attributes: {model: {string: A100}}, capacity: {memory: {value: 40960Mi}}}"
    fi
}
request() {
    if $flat; then
        echo '{name: gpu, deviceClassName: kubectl-check}'
    else
        echo '{name: gpu, exactly: {deviceClassName: kubectl-check}}'
    fi
}

cat >"$work/all.yaml" <<YAML
apiVersion: $version
kind: DeviceClass
metadata: {name: kubectl-check}
spec: {selectors: [{cel: {expression: 'device.driver == "check.example.com"'}}]}
---
apiVersion: $version
kind: ResourceSlice
metadata: {name: kubectl-check, labels: {kubectl-check: "yes"}}
spec:
  driver: check.example.com
  nodeName: $node
  pool: {name: $node, generation: 1, resourceSliceCount: 1}
  devices: [$(device gpu-0), $(device gpu-1)]
---
apiVersion: $version
kind: ResourceClaim
metadata: {name: kubectl-check, namespace: default}
spec: {devices: {requests: [$(request)]}}
---
apiVersion: $version
kind: ResourceClaimTemplate
metadata: {name: kubectl-check, namespace: default}
spec: {spec: {devices: {requests: [$(request)]}}}
---
apiVersion: v1
kind: Event
metadata: {name: kubectl-check, namespace: default}
involvedObject: {apiVersion: $version, kind: ResourceClaim, name: kubectl-check, namespace: default}
type: Warning
reason: KubectlCheck
message: an event of the old style
---
apiVersion: v1
kind: Pod
metadata: {name: kubectl-check, namespace: default}
spec:
  nodeName: $node
  containers: [{name: main, image: none, resources: {claims: [{name: gpu}]}}]
  resourceClaims: [{name: gpu, resourceClaimName: kubectl-check}]
YAML

echo '- apply, twice; then from the server side'
k delete --ignore-not-found --filename "$work/all.yaml" >/dev/null
expect 'resourceslice.resource.k8s.io/kubectl-check created' k apply --filename "$work/all.yaml"
expect 'deviceclass.resource.k8s.io/kubectl-check unchanged' k apply --filename "$work/all.yaml"
expect serverside-applied k apply --server-side --force-conflicts --filename "$work/all.yaml"

echo '- get, in every form'
expect "$node" k get nodes
expect Ready k get nodes
expect kube-system k get namespaces
expect check.example.com k get resourceslices
[[ $(k get resourceslices | head -1 | tr -s ' ') == 'NAME NODE DRIVER POOL AGE' ]]
expect pending k get resourceclaims
[[ $(k get resourceclaims | head -1 | tr -s ' ') == 'NAME STATE AGE' ]]
expect kubectl-check k get resourceclaimtemplates,deviceclasses
expect KubectlCheck k get events
expect kubectl-check k get events.v1.events.k8s.io
expect KubectlCheck k events --for resourceclaim/kubectl-check
expect kubectl-check k get pods --output wide
expect 40Gi k get resourceslice kubectl-check --output yaml
expect '"driver": "check.example.com"' k get resourceslice kubectl-check --output json
expect kubectl-check k get resourceslices --field-selector "spec.driver=check.example.com,spec.nodeName=$node" --output name
expect kubectl-check k get resourceslices --selector kubectl-check=yes --output name
expect kubectl-check k get resourceclaims --all-namespaces --output name
[[ -z $(k get resourceslices --field-selector spec.driver=other.example.com --output name) ]]
refuse 'not found' k get resourceslice kubectl-check-none
refuse 'field label not supported' k get resourceslices --field-selector spec.devices=x

echo '- describe'
expect gpu-1 k describe resourceslice kubectl-check
expect 'Device Class Name' k describe resourceclaim kubectl-check
expect kubectl-check k describe node "$node"
expect kubectl-check k describe pod kubectl-check
expect kubectl-check k describe deviceclass kubectl-check

echo '- patch, label, annotate, replace'
expect patched k patch resourceslice kubectl-check --type merge --patch '{"spec":{"pool":{"generation":2}}}'
expect patched k patch resourceslice kubectl-check --type json --patch '[{"op":"test","path":"/spec/pool/generation","value":2},{"op":"replace","path":"/spec/pool/generation","value":3}]'
[[ $(k get resourceslice kubectl-check --output 'jsonpath={.spec.pool.generation}') == 3 ]]
expect labeled k label resourceslice kubectl-check colour=green
expect annotated k annotate resourceclaim kubectl-check note=one
expect 'NoSchedule' k patch node "$node" --type strategic --patch '{"spec":{"taints":[{"key":"check","effect":"NoSchedule"}]}}' --output yaml
expect untainted k taint node "$node" check-
k get resourceslice kubectl-check --output json >"$work/slice.json"
expect replaced k replace --filename "$work/slice.json"
expect labeled k label resourceslice kubectl-check colour-
refuse 'the object has been modified' k replace --filename "$work/slice.json"

echo '- status, wait, watch'
cat >"$work/status.json" <<JSON
{"status": {"allocation": {"devices": {"results":
    [{"request": "gpu", "driver": "check.example.com", "pool": "$node", "device": "gpu-0"}]}}}}
JSON
expect patched k patch resourceclaim kubectl-check --subresource status --type merge --patch-file "$work/status.json"
expect allocated k get resourceclaim kubectl-check
expect 'condition met' k wait resourceclaim kubectl-check --for 'jsonpath={.status.allocation.devices.results[0].device}=gpu-0' --timeout 10s
expect 'condition met' k wait node "$node" --for condition=Ready --timeout 10s
# A watch ends with the timeout; how kubectl reports that is its own affair.
k get resourceslices --watch --output-watch-events --request-timeout 2s >"$work/watched" 2>&1 || true
expect ADDED grep kubectl-check "$work/watched"

echo '- what the rules refuse'
refuse 'field is immutable' k patch resourceslice kubectl-check --type merge --patch '{"spec":{"driver":"other.example.com"}}'
refuse 'field is immutable' k patch resourceclaim kubectl-check --type merge --patch '{"spec":{"devices":{"requests":[]}}}'
sed 's/name: gpu-0/name: GPU_0/' "$work/all.yaml" >"$work/bad.yaml"
refuse 'a lowercase RFC 1123 label' k apply --server-side --force-conflicts --filename "$work/bad.yaml"
sed 's/driver: check/colour: green\n  driver: check/' "$work/all.yaml" >"$work/bad.yaml"
refuse 'unknown field' k apply --filename "$work/bad.yaml"
refuse 'already exists' k create --filename "$work/slice.json"

echo '- create, delete'
# From a file: the short form sends protobuf, which only the real server reads.
echo '{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kubectl-check"}}' >"$work/namespace.json"
expect created k create --filename "$work/namespace.json"
expect kubectl-check k get namespace kubectl-check
expect deleted k delete namespace kubectl-check
expect 'deleted' k delete --filename "$work/all.yaml"
for type in resourceslices resourceclaims resourceclaimtemplates deviceclasses events pods; do
    [[ $(k get "$type" --output name) != *kubectl-check* ]]
done
echo 'kubectl works'
