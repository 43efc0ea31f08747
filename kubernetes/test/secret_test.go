package test

import (
	"os"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestASecretIsVariablesOfTheGateways gives a gateway the keys of a Secret by env_file, changes the Secret, and restarts the gateway.
func TestASecretIsVariablesOfTheGateways(t *testing.T) {
	b := withNode(t, "secret")
	b.volumes(1, corev1.ReadWriteOnce)
	b.must("create", "secret", "generic", "keys", "--from-literal=TOKEN=first", "--from-literal=tls.crt=none")
	b.singleWith(map[string]any{"secret": "keys", "config": "agent: {env_file: /run/secrets/agent}\n"}, "one", nil)
	b.awaitReady("one")
	token := func(want string) func() string {
		return func() string {
			for _, pid := range gateways()["default"] {
				environ, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
				if err == nil && strings.Contains("\x00"+string(environ), "\x00TOKEN="+want+"\x00") {
					return ""
				}
			}
			return "TOKEN=" + want
		}
	}
	b.until("the gateway has the token", token("first"))
	b.must("patch", "secret", "keys", "-p", `{"stringData": {"TOKEN": "second"}}`)
	b.until("the kubelet has exchanged the file", func() string {
		return strings.TrimPrefix(b.inPod("one", "cat", "/run/secrets/agent/TOKEN").out, "second")
	})
	if r := b.inPod("one", "hinit", "restart", "default"); r.code != 0 {
		t.Fatal(r)
	}
	b.until("the gateway has the new token", token("second"))
}
