package test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"hinit/kubernetes/internal/cluster"
)

// runDuringFault calls fault while a command runs in the sandbox, and returns the command's result. The
// command records each of its runs in a file.
func (a *agentPod) runDuringFault(id string, fault func()) result {
	a.t.Helper()
	begun := a.volume + "/sandboxes/docker/default/workspace/begun"
	_ = os.Remove(begun) // An error means that the file does not exist.
	var r result
	var done sync.WaitGroup
	done.Go(func() { r = a.shellIn(id, "echo once >> /workspace/begun; sleep 60; echo over") })
	a.eventually("the command has begun", func() string {
		if _, err := os.Stat(begun); err != nil {
			return err.Error()
		}
		return ""
	})
	fault()
	done.Wait()
	time.Sleep(2 * time.Second) // By now, a second run would have begun.
	if text, err := os.ReadFile(begun); string(text) != "once\n" {
		a.t.Errorf("the command ran like this: %q, %v", text, err)
	}
	return r
}

// preferForOOM makes process 1 of the sandboxes the kernel's first choice when memory runs out.
func preferForOOM(t *testing.T) {
	t.Helper()
	found := false
	for pid, command := range processes() {
		if strings.Contains(command, gateInit) {
			found = os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), []byte("1000"), 0) == nil || found
		}
	}
	if !found {
		t.Error("there is no process 1")
	}
}

// TestWhatBefallsASandboxIsSaidInWords injects each fault while a command runs. The answer must
// describe the fault, and the command must not run again.
func TestWhatBefallsASandboxIsSaidInWords(t *testing.T) {
	cluster.SkipIfShort(t)
	a := withSandboxes(t)
	t.Cleanup(func() { a.mustRun("uncordon", "node1") })
	name := "hermes-0000000a"
	id := a.createdID(a.runSandbox(name))
	// again restores the sandbox as the agent does: it finds, starts or creates the container.
	again := func() {
		t.Helper()
		a.eventually("the sandbox works again", func() string {
			if r := a.shellIn(id, "true"); r.exitCode == 0 {
				return ""
			}
			if r := a.docker("start", id); r.exitCode == 0 {
				return "started"
			}
			r := a.runSandbox(name)
			if r.exitCode == 0 {
				id = strings.TrimSpace(r.output)
			}
			return r.String()
		})
	}
	for _, fault := range []struct {
		name string
		do   func()
		code int
		want []string
	}{
		{"the pod is deleted", func() { a.mustRun("delete", "pod", objectName(name), "--wait=false") }, 137, []string{"had begun", "the pod " + objectName(name) + " was deleted", "was not run again"}},
		{"the node is drained", func() {
			a.mustRun("drain", "node1", "--pod-selector=hinit.dev/sandbox", "--delete-emptydir-data", "--timeout=1m")
			a.mustRun("uncordon", "node1")
		}, 137, []string{"had begun", "was evicted from the node node1, which is being drained"}},
		{"the program inside is killed", func() {
			if killMatching(inside) == 0 {
				t.Error("no program inside runs")
			}
		}, 137, []string{"had begun", "the container runs"}},
		{"the service is killed", func() { killMatching(serving) }, 137, []string{"went away while the command ran", "was not run again"}},
		{"process 1 of the container is killed", func() { killMatching(gateInit) }, 137, []string{"had begun", "the container has ended with exit code 137"}},
	} {
		r := a.runDuringFault(id, fault.do)
		if r.exitCode != fault.code {
			t.Errorf("%s: %v", fault.name, r)
		}
		for _, want := range fault.want {
			if !strings.Contains(r.output, want) {
				t.Errorf("%s: it does not say %q: %s", fault.name, want, r.output)
			}
		}
		again()
		t.Logf("%s: %s", fault.name, strings.TrimSpace(r.output))
	}

	t.Run("out of memory", func(t *testing.T) {
		r := a.shellIn(id, "dd if=/dev/zero of=/dev/null bs=400M count=3 2>&1; echo code $?")
		if !strings.Contains(r.output, "code 137") && !strings.Contains(r.output, "ran out of memory") { // With cgroup v2, the kernel kills all processes.
			t.Error("one process has too much:", r)
		}
		again()
		preferForOOM(t) // Files in memory belong to no process, so the kernel kills process 1, which has the highest score.
		r = a.runDuringFault(id, func() {
			a.shellIn(id, "for d in /tmp /run /dev/shm /var/tmp; do dd if=/dev/zero of=$d/full bs=1M count=64; done")
		})
		if r.exitCode != 137 || !strings.Contains(r.output, "the container was killed because it ran out of memory (its limit is 128Mi)") {
			t.Error("the container has too much:", r)
		}
		t.Log(r)
	})
	again()
	t.Run("a bad image", func(t *testing.T) {
		began := time.Now()
		r := a.docker("run", "-d", "--name", "hermes-0000000b", "--label", "hermes-agent=1", "--label", "hermes-task-id=b", "--label", "hermes-profile=default", "hinit-demo:no-such-tag", "sleep", "infinity")
		if r.exitCode != 125 || !strings.Contains(r.output, "can't be pulled") {
			t.Error(r)
		}
		t.Logf("after %v: %s", time.Since(began), r.output)
		a.awaitNoPod("hermes-0000000b")
	})
	t.Run("no node has room", func(t *testing.T) {
		a.mustRun("cordon", "node1")
		defer a.mustRun("uncordon", "node1")
		a.docker("rm", "-f", id)
		done := make(chan result, 1)
		go func() { done <- a.runSandbox(name) }()
		time.Sleep(5 * time.Second)
		a.mustRun("uncordon", "node1")
		if r := <-done; r.exitCode != 0 {
			t.Error("a node came back, and the sandbox did not:", r)
		} else {
			id = strings.TrimSpace(r.output)
		}
	})

	// Run the commands inside the pod, because kubectl would need the API server.
	later := func(tag, line string) {
		script := "(" + line + ") > /opt/data/" + tag + ".out 2>&1; echo $? > /opt/data/" + tag + ".code"
		a.mustRun("exec", "agents-0", "-c", "agents", "--", "sh", "-c", "setsid sh -c '"+script+"' > /dev/null 2>&1 &")
	}
	told := func(tag string) (out, code string) {
		t.Helper()
		for end := time.Now().Add(90 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
			if text, err := os.ReadFile(a.volume + "/" + tag + ".code"); err == nil && len(text) > 0 {
				code = strings.TrimSpace(string(text))
				break
			}
		}
		text, _ := os.ReadFile(a.volume + "/" + tag + ".out") // If the file is missing, the result is "".
		return string(text), code
	}
	t.Run("the API server is killed", func(t *testing.T) {
		later("killed", "/opt/hinit/docker exec "+id+" sh -c \"echo once >> /workspace/killed; sleep 30; echo over\"")
		a.eventually("the command has begun", func() string {
			_, err := os.Stat(a.volume + "/sandboxes/docker/default/workspace/killed")
			return map[bool]string{true: "not yet"}[err != nil]
		})
		a.KillServer()
		time.Sleep(2 * time.Second)
		if err := a.StartAPIServer(context.Background()); err != nil {
			t.Fatal(err)
		}
		out, code := told("killed")
		text, _ := os.ReadFile(a.volume + "/sandboxes/docker/default/workspace/killed")
		if code != "137" || !strings.Contains(out, "was not run again") || string(text) != "once\n" {
			t.Errorf("code %s, it ran like this: %q, and said: %s", code, text, out)
		}
		t.Log(out)
		again()
		if left := a.shellIn(id, "ps | grep -c '[s]leep 30'"); strings.TrimSpace(left.output) != "0\ncommand terminated with exit code 1" {
			t.Error("the tree of the lost command is left:", left)
		}
	})
	t.Run("the API server is slow", func(t *testing.T) {
		later("slow", "/opt/hinit/docker exec "+id+" sh -c \"sleep 6; echo over\"")
		time.Sleep(2 * time.Second)
		goOn, err := a.PauseServer()
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(9 * time.Second)
		goOn()
		if out, code := told("slow"); code != "0" || out != "over\n" {
			t.Errorf("code %s: %s", code, out)
		}
	})
	t.Run("the node is lost", func(t *testing.T) {
		again()
		later("lost", "while ! /opt/hinit/docker exec "+id+" true 2>&1 | tee /opt/data/lost.last | grep -q \"does not answer the cluster\"; do sleep 1; done; cat /opt/data/lost.last")
		a.nodes[1].KillKubelet()
		out, code := told("lost")
		if err := a.nodes[1].StartKubelet(context.Background()); err != nil {
			t.Fatal(err)
		}
		if code != "0" || !strings.Contains(out, "is not running (the node node1, on which the pod "+objectName(name)+" ran, does not answer the cluster any more)") {
			t.Errorf("code %s: %s", code, out)
		}
		again()
	})
	t.Log(a.mustRun("logs", "agents-0", "-c", "sandboxes"))
}
