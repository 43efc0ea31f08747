package promises_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"hinit/client"
)

// atLimit runs a shell in a full control group, as "docker exec" does. The shell can't fork.
func (b *testContainer) atLimit(group, script string) (out string, code int) {
	b.t.Helper()
	cmd := exec.Command("/bin/sh", "-c", "echo $$ > "+filepath.Join(group, "cgroup.procs")+"\n"+script)
	cmd.Env = append(os.Environ(), "HINIT_RUNTIME_DIR="+b.path("run"), "HINIT_CONFIG="+b.path("hinit.yaml"))
	text, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		b.t.Fatal(err)
	}
	return string(text), cmd.ProcessState.ExitCode()
}

// TestRootActsAtALimitThatIsReached checks that hinit's commands work in a container at its process
// limit.
func TestRootActsAtALimitThatIsReached(t *testing.T) {
	parallelInTurn(t)
	requireRoot(t)
	group := pidsGroup(t)
	b := newTestContainer(t, setup{config: quick, stageConfig: stageConfig{Cgroup: group}})
	names := b.profiles(4, sleeper)
	b.boot()
	b.startAndAwait(names...)
	b.check(os.Symlink(built.shipped, b.path("s6-svstat")))
	b.check(os.WriteFile(filepath.Join(group, "pids.max"), []byte("1"), 0))
	hinit := "exec " + built.shipped + " "
	for _, c := range []struct {
		script string
		code   int
		says   string
	}{
		{hinit + "status", 0, "gateway-" + names[0]},
		{hinit + "healthcheck", 0, `"ok":true`},
		{hinit + "stop " + names[0], 0, names[0] + " is down"},
		{hinit + "status " + names[0], 3, "down"},
		{hinit + "stop nobody", 6, "nobody"},
		{hinit + "logs " + names[0], 1, b.path("run/orders")},
		{"exec " + b.path("s6-svstat") + " /run/service/gateway-x", 111, b.path("run/orders")},
		{"HINIT_RUNTIME_DIR=/nowhere " + hinit + "status", 4, "cannot run hinit status: no thread can be made here, and hinit cannot be reached"},
	} {
		out, code := b.atLimit(group, c.script)
		if code != c.code || !strings.Contains(out, c.says) || strings.Contains(out, "goroutine") {
			t.Errorf("%s: exit code %d, want %d with %q:\n%s", c.script, code, c.code, c.says, out)
		}
		sheet.add("orders at the limit", 1)
	}
	b.check(b.checkState(names[0], client.StateDown)())
	// As a last resort, a shell writes a line to the FIFO, without a new process.
	if out, code := b.atLimit(group, "echo stop "+names[1]+" > "+b.path("run/orders")); code != 0 {
		t.Errorf("an order by the FIFO: exit code %d: %s", code, out)
	}
	within(t, patience, b.checkState(names[1], client.StateDown))
	sheet.add("orders at the limit", 1)
	b.check(b.checkState(names[2], client.StateUp)(), os.WriteFile(filepath.Join(group, "pids.max"), []byte("max"), 0))
	b.startAndAwait(names[0])
	sheet.add("faults", 1)
}

// TestALimitThatEndsTheGoRuntimeIsNamed checks that PID 1 says in one sentence which limit is too low. It ended with a stack trace.
func TestALimitThatEndsTheGoRuntimeIsNamed(t *testing.T) {
	parallelInTurn(t)
	requireRoot(t)
	for _, c := range []struct {
		says   string
		pids   string
		limits map[int]uint64
	}{
		{"cannot run: the pod has no process numbers left for its 25 threads; ", "20", nil},
		{"cannot run: its address space is limited to less than 730 MiB; ", "", map[int]uint64{unix.RLIMIT_AS: 640 << 20}},
		{"cannot run: its data is limited to less than 76 MiB; ", "", map[int]uint64{unix.RLIMIT_DATA: 64 << 20}},
	} {
		s := setup{config: quick, env: []string{"KUBERNETES_SERVICE_HOST=10.0.0.1"}, stageConfig: stageConfig{Limits: c.limits}}
		if c.pids != "" {
			s.Cgroup = pidsGroup(t)
		}
		b := newTestContainer(t, s)
		if c.pids != "" {
			b.check(os.WriteFile(filepath.Join(s.Cgroup, "pids.max"), []byte(c.pids), 0))
		}
		b.start()
		code := b.wait(patience)
		if said := b.lastWords(); code != 1 || !strings.Contains(said, c.says) || strings.Contains(said, "goroutine") {
			t.Errorf("exit code %d, want 1 with %q:\n%s", code, c.says, said)
		}
	}
}

// TestAPodWithFewProcessNumbersIsServed checks that PID 1 works with few threads where the pod has no process numbers for more. Its
// containers do not see this limit, and PID 1 ended with a stack trace.
func TestAPodWithFewProcessNumbersIsServed(t *testing.T) {
	parallelInTurn(t)
	requireRoot(t)
	group := pidsGroup(t)
	b := newTestContainer(t, setup{config: quick, env: []string{"KUBERNETES_SERVICE_HOST=10.0.0.1"}, stageConfig: stageConfig{Cgroup: group}})
	b.check(os.WriteFile(filepath.Join(group, "pids.max"), []byte("40"), 0))
	b.profile("a", sleeper)
	b.boot()
	b.startAndAwait("a")
}
