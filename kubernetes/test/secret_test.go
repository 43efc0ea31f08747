package test

import (
	"os"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"hinit/kubernetes/internal/cluster"
	"hinit/kubernetes/internal/deploy"
)

// secretsPage is a page whose last block holds values for the chart.
const secretsPage = "../../docs/how-to/give-agents-secrets.md"

// valuesOf parses the values in the last block of a page, by their paths.
func (b *testBed) valuesOf(page string) map[string]any {
	b.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		b.Fatal(err)
	}
	_, block, found := strings.Cut(string(text)[strings.LastIndex(string(text), "```yaml"):], "\n")
	block, _, closed := strings.Cut(block, "```")
	values := map[string]any{}
	if err := yaml.UnmarshalStrict([]byte(block), &values); err != nil || !found || !closed || len(values) == 0 {
		b.Fatal(err, block)
	}
	for name := range values {
		if _, known := deploy.WithDefaults(nil)[name]; !known {
			b.Errorf("%s has the value %q, which the chart does not have", page, name)
		}
	}
	return values
}

// hasVariable returns a condition for the default gateway: it has a variable with this value.
func hasVariable(name, value string) func() string {
	return func() string {
		for _, pid := range gatewayPIDs()["default"] {
			environ, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
			if err == nil && strings.Contains("\x00"+string(environ), "\x00"+name+"="+value+"\x00") {
				return ""
			}
		}
		return "no " + name + "=" + value
	}
}

// TestASecretIsVariablesOfTheGateways checks that a gateway gets the keys of a Secret as the page says, and is
// restarted when the Secret changes.
func TestASecretIsVariablesOfTheGateways(t *testing.T) {
	cluster.SkipIfShort(t)
	b := withNode(t, "secret")
	b.volumes(1, corev1.ReadWriteOnce)
	b.mustRun("create", "secret", "generic", "keys", "--from-literal=OPENAI_API_KEY=first", "--from-literal=tls.crt=none")
	b.createPodWithValues(b.valuesOf(secretsPage), "one", nil)
	b.awaitReady("one")
	b.eventually("the gateway has the key", hasVariable("OPENAI_API_KEY", "first"))
	if r := b.execInPod("one", "hinit", "restart", "--changed"); r.exitCode != 0 || !strings.Contains(r.output, "nothing to restart") {
		t.Error(r)
	}
	b.mustRun("patch", "secret", "keys", "-p", `{"stringData": {"OPENAI_API_KEY": "second"}}`)
	b.eventually("the kubelet has exchanged the file", func() string {
		return strings.TrimPrefix(b.execInPod("one", "cat", "/run/secrets/agent/OPENAI_API_KEY").output, "second")
	})
	b.eventually("the gateway has the new key without a command", hasVariable("OPENAI_API_KEY", "second"))
	if p := b.pod("one"); restarts(p) != 0 || !isPodReady(p) {
		t.Errorf("%d restarts of the pod", restarts(p))
	}
}

// TestAFileIsAVariableOfTheGateways checks Docker's convention for secrets in files, and a variable whose file is
// missing.
func TestAFileIsAVariableOfTheGateways(t *testing.T) {
	cluster.SkipIfShort(t)
	b := withNode(t, "secret-file")
	b.volumes(2, corev1.ReadWriteOnce)
	b.mustRun("create", "secret", "generic", "keys", "--from-literal=openai=first")
	b.createPodWithValues(map[string]any{"secret": "keys", "env": map[string]any{"OPENAI_API_KEY_FILE": "/run/secrets/agent/openai"}}, "one", nil)
	b.awaitReady("one")
	b.eventually("the gateway has the key", hasVariable("OPENAI_API_KEY", "first"))
	b.mustRun("patch", "secret", "keys", "-p", `{"stringData": {"openai": "second"}}`)
	b.eventually("restart --changed restarts the gateway", func() string {
		r := b.execInPod("one", "hinit", "restart", "--changed")
		if !strings.Contains(r.output, "gateway-default is up") {
			return r.String()
		}
		return ""
	})
	b.eventually("the gateway has the new key", hasVariable("OPENAI_API_KEY", "second"))
	b.mustRun("delete", "pod", "one")

	b.createPodWithValues(map[string]any{"secret": "keys", "env": map[string]any{"OPENAI_API_KEY_FILE": "/run/secrets/agent/opnai"}}, "missing", nil)
	b.awaitNotReady("missing", "not ready: ")
	if r := b.execInPod("missing", "hinit", "logs", "-n", "5", "default"); !strings.Contains(r.output, "cannot read OPENAI_API_KEY_FILE=/run/secrets/agent/opnai as uid 10000: no such file or directory") {
		t.Error(r)
	}
}
