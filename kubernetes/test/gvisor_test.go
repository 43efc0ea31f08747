package test

import (
	"os"
	"strings"
	"testing"

	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hinit/kubernetes/internal/cluster"
)

// TestASandboxHasAKernelOfItsOwn runs sandboxes with gVisor: their commands never reach the kernel of the node, and everything
// that an agent asks of a sandbox works as with runc.
func TestASandboxHasAKernelOfItsOwn(t *testing.T) {
	cluster.InFull(t)
	b := withServer(t)
	if b.LeftOut == "" && !b.Guards() {
		t.Skip("gVisor is missing; apt-get install runsc")
	}
	b.apply(&nodev1.RuntimeClass{TypeMeta: metav1.TypeMeta{APIVersion: "node.k8s.io/v1", Kind: "RuntimeClass"}, ObjectMeta: metav1.ObjectMeta{Name: cluster.GvisorRuntime}, Handler: cluster.GvisorRuntime})
	t.Cleanup(func() { b.must("delete", "runtimeclass", cluster.GvisorRuntime) })
	a := withSandboxes(t, "HINIT_SANDBOX_KUBERNETES_RUNTIME="+cluster.GvisorRuntime)
	id := a.made(a.run("hermes-000000f0"))
	if r := a.sh(id, "dmesg | grep -c gVisor; id -u; pwd; echo kept > file; echo gone > /tmp/file; exit 7"); r.code != 7 || !strings.HasSuffix(r.out, "\n10000\n/root\n") || strings.HasPrefix(r.out, "0") {
		t.Error(r)
	}
	if text, err := os.ReadFile(a.volume + "/sandboxes/docker/default/home/file"); string(text) != "kept\n" {
		t.Error("the file of the sandbox is not on the agent's volume:", string(text), err)
	}
	if r := a.sh(id, "sleep 1000 & echo begun"); r.code != 0 || !strings.Contains(r.out, "begun") {
		t.Error(r)
	}
	if r := a.sh(id, "pgrep -c sleep || ps | grep -c '[s]leep 1000'"); strings.TrimSpace(r.out) != "0" {
		t.Error("a process outlived its command:", r)
	}
	if kill(serving) != 1 {
		t.Error("there is not one service")
	}
	a.until("the service serves again", func() string {
		r := a.sh(id, "cat /tmp/file")
		return map[bool]string{false: r.String()}[r.out == "gone\n"]
	})
	if r := a.docker("stop", "-t", "1", id); r.code != 0 {
		t.Fatal(r)
	}
	if r := a.docker("start", id); r.code != 0 {
		t.Fatal(r)
	}
	if r := a.sh(id, "cat file; cat /tmp/file 2>&1"); !strings.HasPrefix(r.out, "kept\ncat: can't open '/tmp/file'") {
		t.Error(r)
	}
	if r := a.docker("rm", "-f", id); r.code != 0 {
		t.Error(r)
	}
	a.gone("hermes-000000f0")
}
