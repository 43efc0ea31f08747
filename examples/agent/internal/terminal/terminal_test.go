package terminal

import (
	"os/exec"
	"strings"
	"testing"
)

func newTestTerminal(cwd string, ready bool) *Terminal {
	return &Terminal{sessionID: "0123456789ab", cwd: cwd, hasSnapshot: ready}
}

func TestWrap(t *testing.T) {
	lines := strings.Split(newTestTerminal("/root", true).wrapCommand("echo hi"), "\n")
	for i, want := range []string{"source /tmp/hermes-snap-0123456789ab.sh", "builtin cd -- '/root' || exit 126", "eval 'echo hi'", "__hermes_ec=$?", "export -p > ", "pwd -P > /tmp/hermes-cwd-", "printf", "exit $__hermes_ec"} {
		if !strings.HasPrefix(lines[i], want) {
			t.Errorf("line %d is %q, want %q", i, lines[i], want)
		}
	}
	if got := newTestTerminal("/root", false).wrapCommand("x"); strings.Contains(got, "source") || strings.Contains(got, "export -p") {
		t.Errorf("without a snapshot: %s", got)
	}
	if got := newTestTerminal("/root", true).wrapCommand("echo 'a'"); !strings.Contains(got, `eval 'echo '\''a'\'''`) {
		t.Errorf("quotes: %s", got)
	}
	for dir, want := range map[string]string{"~": "cd -- ~ ", "~/x y": "cd -- $HOME/'x y' ", "-x": "cd -- '-x' ", "/a b": "cd -- '/a b' "} {
		if got := newTestTerminal(dir, true).wrapCommand("x"); !strings.Contains(got, want) {
			t.Errorf("%s: %s", dir, got)
		}
	}
}

// TestWrapRuns checks the script in a bash, if there is one.
func TestWrapRuns(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip(err)
	}
	run := func(x *Terminal, command string) (string, int) {
		cmd := exec.CommandContext(t.Context(), bash, "-c", x.wrapCommand(command))
		out, _ := cmd.CombinedOutput()
		return x.extractWorkingDir(string(out)), cmd.ProcessState.ExitCode()
	}
	x := newTestTerminal(t.TempDir(), false)
	if out, code := run(x, "mkdir 'a b'; cd 'a b'; echo in; (exit 7)"); out != "in\n" || code != 7 || !strings.HasSuffix(x.cwd, "/a b") {
		t.Errorf("%q, %d, in %s", out, code, x.cwd)
	}
	if out, code := run(x, "pwd"); out != x.cwd+"\n" || code != 0 {
		t.Errorf("%q, %d", out, code)
	}
	if _, code := run(newTestTerminal("/no/such/directory", false), "echo ran"); code != 126 {
		t.Errorf("no such directory: %d", code)
	}
}

func TestFollow(t *testing.T) {
	const m = "__HERMES_CWD_0123456789ab__"
	for _, c := range []struct{ in, out, cwd string }{
		{"out\n\n" + m + "/x" + m + "\n", "out\n", "/x"},
		{"\n" + m + "/x" + m + "\n", "", "/x"},
		{"no marker\n", "no marker\n", "/before"},
		{m + "only one\n", m + "only one\n", "/before"},
		{"a " + m + " in the output\n\n" + m + "/x y" + m + "\n", "a " + m + " in the output\n", "/x y"},
		{"out\n\n" + m + m + "\n", "out\n", "/before"},
		{m + strings.Repeat("x", 5000) + m + "\n", m + strings.Repeat("x", 5000) + m + "\n", "/before"},
	} {
		x := newTestTerminal("/before", true)
		if got := x.extractWorkingDir(c.in); got != c.out || x.cwd != c.cwd {
			t.Errorf("%.60q: %.60q in %s", c.in, got, x.cwd)
		}
	}
}

func TestSanitise(t *testing.T) {
	for in, want := range map[string]string{
		"plain-name_1.0": "plain-name_1.0", "with/slash": "with_slash", "with:colon": "with_colon", "emoji-😀-here": "emoji-_-here", "": "unknown",
		strings.Repeat("x", 100): strings.Repeat("x", 63), "task/with:weird*chars": "task_with_weird_chars",
	} {
		if got := Sanitise(in); got != want {
			t.Errorf("%q: %q", in, got)
		}
	}
}

func TestLooksGone(t *testing.T) {
	for text, want := range map[string]bool{
		"Error response from daemon: No such container: x": true, "Error: no such container": true, "Container x is not running": true,
		"bash: x: command not found": false, "Traceback": false, "permission denied": false, "": false,
	} {
		if isContainerMissing(text) != want {
			t.Errorf("%q: %v", text, !want)
		}
	}
}

// TestFromEnv checks the variables that the agent reads.
func TestFromEnv(t *testing.T) {
	env := map[string]string{"HERMES_DOCKER_BINARY": "/bin/sh", "TERMINAL_DOCKER_IMAGE": "i", "TERMINAL_DOCKER_PERSIST_ACROSS_PROCESSES": "on", "TERMINAL_LIFETIME_SECONDS": "7", "TERMINAL_DOCKER_FORWARD_ENV": `["A"]`}
	o, err := FromEnv(func(name string) string { return env[name] }, "/home", "coder")
	if err != nil || o.Docker != "/bin/sh" || o.Persist || o.Lifetime.Seconds() != 7 || len(o.ForwardEnv) != 1 || o.Dir != "/home/sandboxes" || o.Profile != "coder" {
		t.Errorf("%+v, %v", o, err)
	}
	env["TERMINAL_DOCKER_EXTRA_ARGS"] = "{"
	if _, err := FromEnv(func(name string) string { return env[name] }, "", ""); err == nil || !strings.Contains(err.Error(), "TERMINAL_DOCKER_EXTRA_ARGS") {
		t.Error(err)
	}
}
