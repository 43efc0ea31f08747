package test

import (
	"os"
	"strings"
	"testing"
	"time"

	"hinit/kubernetes/internal/cluster"
)

// TestASandboxHasGvisorsKernel checks that commands run on gVisor's kernel if its RuntimeClass is
// set, with the same rules as other sandboxes.
func TestASandboxHasGvisorsKernel(t *testing.T) {
	cluster.SkipIfShort(t)
	b := withServer(t)
	if b.WhyNoNodes == "" && !b.HasGvisor() {
		t.Skip("gVisor was not built; make test-kubernetes builds it")
	}
	b.runtimeClass(cluster.GvisorRuntime)
	a := withSandboxes(t, "HINIT_SANDBOX_KUBERNETES_RUNTIME="+cluster.GvisorRuntime)
	const name = "hermes-0000000e"
	began := time.Now()
	id := a.createdID(a.runSandbox(name, "-e", "WORD=said"))
	t.Logf("made in %v, which includes the trial of user namespaces", time.Since(began))
	if r := a.shellIn(id, "dmesg | head -n 1"); !strings.Contains(r.output, "gVisor") {
		t.Error("this is not gVisor's kernel:", r)
	}
	if r := a.shellIn(id, "id -u; pwd; echo $WORD; echo kept > file; exit 7"); !strings.HasPrefix(r.output, "10000\n/root\nsaid\n") || r.exitCode != 7 {
		t.Error(r)
	}
	if text, err := os.ReadFile(a.volume + "/sandboxes/docker/default/home/file"); string(text) != "kept\n" {
		t.Error("the file of the sandbox is not on the agent's volume:", string(text), err)
	}
	if r := a.run("exec", "agents-0", "-c", "agents", "--", "sh", "-c", "head -c 1000000 /dev/zero | /opt/hinit/docker exec -i "+id+" wc -c"); r.output != "1000000\n" {
		t.Error("of a million bytes of input arrived:", r)
	}
	a.run("exec", "agents-0", "-c", "agents", "--", "timeout", "1", "/opt/hinit/docker", "exec", id, "sh", "-c", "sleep 100 & sleep 100")
	a.eventually("the tree has ended with its caller", func() string {
		if r := a.shellIn(id, "ps | grep -c '[s]leep 100'"); !strings.HasPrefix(r.output, "0\n") {
			return r.String()
		}
		return ""
	})
	if r := a.runDuringFault(id, func() { a.mustRun("delete", "pod", objectName(name), "--grace-period=0", "--force", "--wait=false") }); r.exitCode == 0 || !strings.Contains(r.output, "sandbox") {
		t.Error("the caller of a lost command is told:", r)
	}
	a.docker("rm", "-f", id)
	id = a.createdID(a.runSandbox(name))
	if r := a.docker("stop", "-t", "1", id); r.exitCode != 0 {
		t.Error(r)
	}
	if r := a.docker("start", id); r.exitCode != 0 {
		t.Error(r)
	}
	if r := a.shellIn(id, "cat file"); r.output != "kept\n" {
		t.Error(r)
	}
	if r := a.docker("rm", "-f", id); r.exitCode != 0 {
		t.Error(r)
	}
	a.awaitNoPod(name)
	t.Run("links below mounts", func(t *testing.T) { a.linksBelowMounts(t, "hermes-0000002a") })
	t.Run("a race", a.mountRace)
}
