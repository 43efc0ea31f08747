// Package deploy generates the manifests for hinit on Kubernetes from one source: a kustomize base with components, and a
// Helm chart.
//
// The files in source/ are the templates of the chart. The base is the result of these templates with the defaults of
// [Values]. A component is the difference that a changed value makes. The package owns no goroutine.
package deploy

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
)

// Value is one value of the chart. Users set it with --set or in a values file.
type Value struct {
	Path    string         // names of the keys from the top to the value, separated by dots
	Default any            // Default value: a string, int, bool, []any or map[string]any.
	Doc     string         // documentation, one sentence
	Schema  map[string]any // Keywords of JSON Schema, except for type and description.
}

// Regular expressions for the values of the chart. They are stricter than resource.ParseQuantity, to catch mistakes such as
// 128m of memory or 2Gi of CPUs.
const (
	number    = `(0\.[0-9]*[1-9][0-9]*|[1-9][0-9]*(\.[0-9]+)?)`
	size      = `^(` + number + `[KMGTP]i|` + number + `[kMGTP]|[1-9][0-9]{6,})$`
	cpus      = `^(` + number + `|[1-9][0-9]*m)$`
	dnsLabel  = `^[a-z0-9]([-a-z0-9]{0,50}[a-z0-9])?$`
	subdomain = `[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*`
	reference = `^([A-Za-z0-9.-]+(:[0-9]+)?/)?[a-z0-9]+([._/-]+[a-z0-9]+)*(:[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(@sha256:[0-9a-f]{64})?$`
	byte4     = `(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])`
	network   = `^(` + byte4 + `(\.` + byte4 + `){3}/(3[0-2]|[12]?[0-9])|[0-9a-fA-F:.]*:[0-9a-fA-F:.]*/(12[0-8]|1[01][0-9]|[1-9]?[0-9]))$`
)

// derivedVariables lists the environment variables that the chart derives from other values. So the value env must not
// contain them.
var derivedVariables = []any{
	"HINIT_STOP_TIMEOUT", "HINIT_LOG_CONSOLE", "HINIT_WEB", "HINIT_WEB_LISTEN", "HINIT_WEB_TOKEN_FILE",
	"HINIT_LEASE", "HINIT_LEASE_NAME", "HINIT_LEASE_DURATION", "HINIT_LEASE_IDENTITY", "HERMES_GATEWAY_BOOTSTRAP_STATE",
	"HINIT_SANDBOX_SOCKET", "HERMES_DOCKER_BINARY",
}

func patternSchema(p string) map[string]any   { return map[string]any{"pattern": p} }
func oneOfSchema(words ...any) map[string]any { return map[string]any{"enum": words} }
func rangeSchema(from, to int) map[string]any { return map[string]any{"minimum": from, "maximum": to} }

// Values returns all values of the chart in the order of the reference page.
func Values() []Value {
	return []Value{
		{"name", "agents", "The name of all objects.", patternSchema(dnsLabel)},
		{"image", "hinit-demo:latest", "The image of the agent, with hinit as its entrypoint.", patternSchema(reference)},
		{"imagePullPolicy", "IfNotPresent", "When the kubelet pulls the image.", oneOfSchema("IfNotPresent", "Always", "Never")},
		{"args", []any{"gateway", "run"}, "The command of the container. `gateway run` keeps the default profile wanted up.", map[string]any{"items": map[string]any{"type": "string"}}},
		{"user", 10000, "The uid and gid of everything in the pod, and the group of the volume.", rangeSchema(1, 2147483647)},
		{"stopSeconds", 30, "The time to stop everything. With drainSeconds it is the pod's terminationGracePeriodSeconds.", rangeSchema(5, 3600)},
		{"drainSeconds", 20, "The time for which an ending pod waits for gateways that work on answers.", rangeSchema(0, 3600)},
		{"bootSeconds", 600, "The time for the boot, after which the kubelet restarts the container.", rangeSchema(10, 86400)},
		{"console", "raw", "The form of services' lines in the container's log.", oneOfSchema("raw", "prefixed", "json", "off")},
		{"env", map[string]any{}, "More variables of the container, except those that other values set.", map[string]any{"additionalProperties": map[string]any{"type": "string"}, "propertyNames": map[string]any{"pattern": `^[A-Za-z_][A-Za-z0-9_]*$`, "not": oneOfSchema(derivedVariables...)}}},
		{"config", "", "The text of hinit.yaml. Empty: none.", nil},
		{"secret", "", "A Secret whose keys become files in /run/secrets/agent. Empty: none.", patternSchema(`^(` + subdomain + `)?$`)},
		{"storage.size", "1Gi", "The size of the volume.", patternSchema(size)},
		{"storage.className", "", "StorageClass of the volume. Empty: the cluster's default.", patternSchema(`^(` + subdomain + `)?$`)},
		{"storage.accessMode", "ReadWriteOnce", "Access mode of the volume. With a standby: ReadWriteMany.", oneOfSchema("ReadWriteOnce", "ReadWriteOncePod", "ReadWriteMany")},
		{"storage.existingClaim", "", "An existing PersistentVolumeClaim, instead of a new one.", patternSchema(`^(` + subdomain + `)?$`)},
		{"cpu.request", "100m", "The guaranteed processor time.", patternSchema(cpus)},
		{"cpu.limit", "", "The most processor time. Empty: no limit.", patternSchema(`^$|` + cpus)},
		{"memory.request", "256Mi", "The guaranteed memory.", patternSchema(size)},
		{"memory.limit", "1Gi", "The most memory.", patternSchema(size)},
		{"scratch.run", "16Mi", "The size of /run, in memory.", patternSchema(size)},
		{"scratch.tmp", "128Mi", "The size of /tmp, in memory.", patternSchema(size)},
		{"networkPolicy.enabled", true, "Only open ports accept connections. Among private addresses, the agents reach only DNS.", nil},
		{"web.enabled", false, "The status page, on the pod's loopback. Use `kubectl port-forward`.", nil},
		{"metrics.enabled", false, "The page and metrics on port 9120, with the token of the Secret NAME-web, and a PodMonitor.", nil},
		{"lease.enabled", false, "The pod serves only while it holds a Lease of the cluster, for a volume that pods of several nodes mount. The image needs hinit-lease-kubernetes.", nil},
		{"lease.seconds", 15, "The duration of the Lease. A standby takes over at most two seconds later.", rangeSchema(5, 3600)},
		{"lease.apiServer", "0.0.0.0/0", "The API server's address, as ADDRESS/32. The agents too reach its ports 443 and 6443.", patternSchema(network)},
		{"sandboxes.enabled", false, "Agents run their commands in separate pods. The image needs hinit-sandbox-kubernetes. Not together with lease.", nil},
		{"sandboxes.images", []any{"nikolaik/python-nodejs"}, "Patterns of allowed images.", map[string]any{"items": map[string]any{"type": "string", "pattern": `^[^\s,]+$`}}},
		{"sandboxes.kind", "", "`Pod`, or `Sandbox` of agents.x-k8s.io/v1beta1. Empty: Sandbox if the cluster has that kind.", oneOfSchema("", "Pod", "Sandbox")},
		{"sandboxes.root", "", "`private`: commands may be root, with separate volumes. The nodes must support user namespaces, and the namespace must enforce `baseline`.", oneOfSchema("", "private")},
		{"sandboxes.hostUsers", "", "`false`: sandboxes have user namespaces. `true`: they have none. Empty: they have them if the nodes support them.", oneOfSchema("", "true", "false")},
		{"sandboxes.runtimeClassName", "", "The RuntimeClass of sandboxes, such as gvisor or kata. Empty: the cluster's default.", patternSchema(`^(` + subdomain + `)?$`)},
		{"sandboxes.networks", []any{}, "Networks that a call may name: values of the label hinit.dev/network, for your policies.", map[string]any{"items": map[string]any{"type": "string", "pattern": dnsLabel}}},
		{"sandboxes.apiServer", "0.0.0.0/0", "The API server's address, as ADDRESS/32, for ports 443 and 6443. Sandboxes don't reach it.", patternSchema(network)},
		{"sandboxes.memoryMB", 5120, "The most memory of a sandbox, in MB.", rangeSchema(16, 1048576)},
		{"sandboxes.most", 64, "The most sandboxes.", rangeSchema(1, 4096)},
		{"sandboxes.idleSeconds", 86400, "Time without a command or job after which a sandbox is suspended. 0: never.", map[string]any{"minimum": 0, "maximum": 31536000}},
		{"sandboxes.warm", 0, "Sandboxes that wait for each kind of call without files of the agents. Needs the extensions of agent-sandbox.", map[string]any{"minimum": 0, "maximum": 64}},
		{"sandboxes.disk", "10Gi", "The most disk space on the node, outside of mounts. The node ends a sandbox that uses more.", patternSchema(size)},
		{"sandboxes.storage", "1Gi", "The size of a sandbox's volume.", patternSchema(size)},
		{"standby.enabled", false, "A second pod on the same volume, which takes over when the first has ended.", nil},
		{"standby.lease", true, "The Lease of the cluster decides which pod serves. `false`: the lock of the volume decides, if all nodes share it.", nil},
	}
}

// WithDefaults returns all values of the chart: the value in set for each path in it, and the default for every other path.
func WithDefaults(set map[string]any) map[string]any {
	out := map[string]any{}
	for _, v := range Values() {
		value := v.Default
		if other, ok := set[v.Path]; ok {
			value = other
		}
		setPath(out, v.Path, value)
	}
	return out
}

func setPath(into map[string]any, path string, value any) {
	head, rest, deeper := strings.Cut(path, ".")
	if !deeper {
		into[head] = value
		return
	}
	if into[head] == nil {
		into[head] = map[string]any{}
	}
	setPath(into[head].(map[string]any), rest, value)
}

// schema returns the JSON Schema of the values. It allows no other keys, so that Helm reports a misspelt key.
func schema() ([]byte, error) {
	root := object()
	root["$schema"] = "http://json-schema.org/draft-07/schema#"
	for _, v := range Values() {
		at := root
		keys := strings.Split(v.Path, ".")
		for _, key := range keys[:len(keys)-1] {
			properties := at["properties"].(map[string]any)
			if properties[key] == nil {
				properties[key] = object()
			}
			at = properties[key].(map[string]any)
		}
		one := map[string]any{"type": typeOf(v.Default), "description": v.Doc}
		maps.Copy(one, v.Schema)
		at["properties"].(map[string]any)[keys[len(keys)-1]] = one
	}
	root["properties"].(map[string]any)["global"] = map[string]any{"type": "object"} // allow this key, because Helm adds it
	return json.MarshalIndent(root, "", "  ")
}

func object() map[string]any {
	return map[string]any{"type": "object", "additionalProperties": false, "properties": map[string]any{}}
}

func typeOf(value any) string {
	switch value.(type) {
	case string:
		return "string"
	case int:
		return "integer"
	case bool:
		return "boolean"
	case []any:
		return "array"
	case map[string]any:
		return "object"
	}
	panic(fmt.Sprintf("a value of type %T", value))
}

// Reference returns a Markdown list of all values with their defaults.
func Reference() string {
	var b strings.Builder
	for _, v := range Values() {
		text, _ := json.Marshal(v.Default) // ignore the error: Marshal can't fail for the types in [typeOf]
		fmt.Fprintf(&b, "- `%s`; `%s`: %s\n", v.Path, text, v.Doc)
	}
	return b.String()
}

// Page returns the text of docs/reference/kubernetes.md.
func Page() string {
	return `# Values of the manifests

<!-- Generated by kubernetes/internal/deploy. -->

The Helm chart in kubernetes/deploy/chart takes these values, and refuses a wrong one with its name. [Agents on a cluster](../tutorial/agents-on-a-cluster.md)
shows the use. Each line has a value, after a semicolon its default, and its meaning. The kustomize base in kubernetes/deploy/base has the same defaults. Its
components ` + "`web`, `metrics`, `standby`, `lease` and `sandboxes`" + ` switch on the value of their name. The component ` + "`standby-without-lease`" + `
switches off the Lease of a standby.

` + Reference()
}
