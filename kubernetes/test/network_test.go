package test

import (
	"strings"
	"testing"

	"hinit/kubernetes/internal/cluster"
)

// TestASandboxReachesNoOtherPod checks which connections sandboxes can open, first without and then
// with enforced NetworkPolicies.
func TestASandboxReachesNoOtherPod(t *testing.T) {
	cluster.SkipIfShort(t)
	b := withServer(t)
	if why := b.NoEnforcerReason(); b.WhyNoNodes == "" && why != "" {
		t.Skip(why)
	}
	a := withSandboxes(t, "HINIT_SANDBOX_NETWORKS=database")
	ids, ips := map[string]string{}, map[string]string{}
	for name, network := range map[string]string{"hermes-000000e1": "", "hermes-000000e2": "", "hermes-000000e3": "database", "hermes-000000e4": "none"} {
		var more []string
		if network != "" {
			more = append(more, "--network", network)
		}
		ids[name] = a.createdID(a.runWithoutFiles(name, more...))
		ips[name] = a.mustRun("get", "pod", objectName(name), "-o", "jsonpath={.status.podIP}")
		a.shellIn(ids[name], "setsid sh -c 'while true; do echo hello | nc -l -p 8080; done' > /dev/null 2>&1 < /dev/null &")
	}
	reaches := func(name, host, port string) bool {
		return strings.Contains(a.shellIn(ids[name], "nc -w 2 "+host+" "+port+" < /dev/null > /dev/null 2>&1 && echo reached").output, "reached")
	}
	const server = "10.97.0.1"
	a.eventually("without a program that enforces, all are reached", func() string {
		if !reaches("hermes-000000e1", ips["hermes-000000e2"], "8080") || !reaches("hermes-000000e1", server, "443") {
			return "not yet"
		}
		return ""
	})

	if r := a.runWithInput(`
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: database}
spec:
  podSelector: {matchLabels: {hinit.dev/network: database}}
  policyTypes: [Ingress, Egress]
  ingress: [{from: [{podSelector: {matchLabels: {hinit.dev/network: database}}}]}]
  egress: [{to: [{podSelector: {matchLabels: {hinit.dev/network: database}}}]}]
`, "apply", "-f", "-"); r.exitCode != 0 {
		t.Fatal(r)
	}
	ids["hermes-000000e5"] = a.createdID(a.runWithoutFiles("hermes-000000e5", "--network", "database"))
	stop, err := a.StartEnforcer(t.Context(), "node1")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	a.eventually("the policies hold", func() string {
		if reaches("hermes-000000e1", ips["hermes-000000e2"], "8080") {
			return "a sandbox reaches another one"
		}
		return ""
	})
	for _, try := range []struct {
		from, host, port string
		want             bool
	}{
		{"hermes-000000e1", server, "443", false},
		{"hermes-000000e1", ips["hermes-000000e3"], "8080", false},
		{"hermes-000000e3", server, "443", false},
		{"hermes-000000e3", ips["hermes-000000e1"], "8080", false},
		{"hermes-000000e4", ips["hermes-000000e1"], "8080", false},
		{"hermes-000000e4", server, "443", false},
		{"hermes-000000e5", ips["hermes-000000e3"], "8080", true},
	} {
		if got := reaches(try.from, try.host, try.port); got != try.want {
			t.Errorf("%s reaches %s port %s: %v", try.from, try.host, try.port, got)
		}
	}
	if r := a.shellIn(ids["hermes-000000e1"], "echo still"); r.output != "still\n" {
		t.Error("commands have no network, and need none:", r)
	}
}
