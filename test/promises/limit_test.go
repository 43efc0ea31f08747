package promises_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"hinit/client"
)

// atLimit runs a shell in a full control group, as "docker exec" does. The shell can't fork.
func (b *box) atLimit(group, script string) (out string, code int) {
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
	beside(t)
	requireRoot(t)
	group := pidsGroup(t)
	b := newBox(t, setup{config: quick, stageConfig: stageConfig{Cgroup: group}})
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
