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
func (b *bench) valuesOf(page string) map[string]any {
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
		if _, known := deploy.Default(nil)[name]; !known {
			b.Errorf("%s has the value %q, which the chart does not have", page, name)
		}
	}
	return values
}

// hasVariable returns a condition for the default gateway: it has a variable with this value.
func hasVariable(name, value string) func() string {
	return func() string {
		for _, pid := range gateways()["default"] {
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
	cluster.InFull(t)
	b := withNode(t, "secret")
	b.volumes(1, corev1.ReadWriteOnce)
	b.must("create", "secret", "generic", "keys", "--from-literal=OPENAI_API_KEY=first", "--from-literal=tls.crt=none")
	b.singleWith(b.valuesOf(secretsPage), "one", nil)
	b.awaitReady("one")
	b.until("the gateway has the key", hasVariable("OPENAI_API_KEY", "first"))
	if r := b.inPod("one", "hinit", "restart", "--changed"); r.code != 0 || !strings.Contains(r.out, "nothing to restart") {
		t.Error(r)
	}
	b.must("patch", "secret", "keys", "-p", `{"stringData": {"OPENAI_API_KEY": "second"}}`)
	b.until("the kubelet has exchanged the file", func() string {
		return strings.TrimPrefix(b.inPod("one", "cat", "/run/secrets/agent/OPENAI_API_KEY").out, "second")
	})
	b.until("the gateway has the new key without a command", hasVariable("OPENAI_API_KEY", "second"))
	if p := b.pod("one"); restarts(p) != 0 || !ready(p) {
		t.Errorf("%d restarts of the pod", restarts(p))
	}
}

// TestAFileIsAVariableOfTheGateways checks Docker's convention for secrets in files, and a variable whose file is
// missing.
func TestAFileIsAVariableOfTheGateways(t *testing.T) {
	cluster.InFull(t)
	b := withNode(t, "secret-file")
	b.volumes(2, corev1.ReadWriteOnce)
	b.must("create", "secret", "generic", "keys", "--from-literal=openai=first")
	b.singleWith(map[string]any{"secret": "keys", "env": map[string]any{"OPENAI_API_KEY_FILE": "/run/secrets/agent/openai"}}, "one", nil)
	b.awaitReady("one")
	b.until("the gateway has the key", hasVariable("OPENAI_API_KEY", "first"))
	b.must("patch", "secret", "keys", "-p", `{"stringData": {"openai": "second"}}`)
	b.until("restart --changed restarts the gateway", func() string {
		r := b.inPod("one", "hinit", "restart", "--changed")
		if !strings.Contains(r.out, "gateway-default is up") {
			return r.String()
		}
		return ""
	})
	b.until("the gateway has the new key", hasVariable("OPENAI_API_KEY", "second"))
	b.must("delete", "pod", "one")

	b.singleWith(map[string]any{"secret": "keys", "env": map[string]any{"OPENAI_API_KEY_FILE": "/run/secrets/agent/opnai"}}, "missing", nil)
	b.inTrouble("missing", "not ready: ")
	if r := b.inPod("missing", "hinit", "logs", "-n", "5", "default"); !strings.Contains(r.out, "cannot read OPENAI_API_KEY_FILE=/run/secrets/agent/opnai as uid 10000: no such file or directory") {
		t.Error(r)
	}
}
