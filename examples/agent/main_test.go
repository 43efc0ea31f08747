package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"hinit/internal/testkit"
)

// agentPath returns the path of the binary that all tests run.
func agentPath() string { return os.Getenv("TEST_AGENT_BINARY") }

func TestMain(m *testing.M) {
	testkit.IsolateProcess()
	dir, err := os.MkdirTemp("", "agent-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	binary := filepath.Join(dir, "example-agent")
	build := exec.Command("go", append(append([]string{"build"}, raceFlags()...), "-o", binary, ".")...)
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "cannot build the agent: %v\n%s", err, out)
		os.Exit(1)
	}
	os.Setenv("TEST_AGENT_BINARY", binary)
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		os.RemoveAll(dir)
		os.Exit(code)
	}))
}

// result is the output and the exit code of a finished command.
type result struct {
	code           int
	stdout, stderr string
}

// newAgentCmd prepares a run of the agent in a home, without the environment of the tests.
func newAgentCmd(home string, env, args []string) *exec.Cmd {
	cmd := exec.Command(agentPath(), args...)
	cmd.Env = append([]string{"HERMES_HOME=" + home, "HOME=/nonexistent", "GORACE=atexit_sleep_ms=0"}, env...)
	return cmd
}

// runAgent runs a command of the agent until its end.
func runAgent(t *testing.T, home string, args ...string) result {
	t.Helper()
	return runAgentWith(t, home, nil, "", args...)
}

func runAgentWith(t *testing.T, home string, env []string, stdin string, args ...string) result {
	t.Helper()
	cmd := newAgentCmd(home, env, args)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// check checks the exit code and that each text occurs in one of the two outputs.
func (r result) check(t *testing.T, code int, texts ...string) {
	t.Helper()
	if r.code != code {
		t.Errorf("exit code %d, want %d\n%+v", r.code, code, r)
	}
	for _, text := range texts {
		if !strings.Contains(r.stdout+r.stderr, text) {
			t.Errorf("no %q in the output\n%+v", text, r)
		}
	}
}

// eventually polls until ok is true, and fails the test after a timeout.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(testkit.Patience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("it did not happen within %s: %s", testkit.Patience, what)
}

func writeFile(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func fileMode(t *testing.T, path string) os.FileMode {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Mode().Perm()
}

func TestHelpVersionAndUnknownCommand(t *testing.T) {
	home := t.TempDir()
	for _, args := range [][]string{{"--help"}, {"help"}, {}, {"--tui"}} {
		runAgent(t, home, args...).check(t, 0, "usage: hermes", "dashboard")
	}
	runAgent(t, home, "--version").check(t, 0, "example-agent ")
	runAgent(t, home, "chat", "--help").check(t, 0, "usage: chat")
	runAgent(t, home, "dashboard", "--help").check(t, 0, "usage: dashboard")
	runAgent(t, home, "dump").check(t, 0, "version:", "profile:  default", home)
	runAgent(t, home, "frobnicate").check(t, 2, "Error: unknown command 'frobnicate'")
}

func TestChatAnswersAndPromptEndsAtEOF(t *testing.T) {
	home := t.TempDir()
	if got := runAgent(t, home, "chat", "-q", "hello there"); got.code != 0 || got.stdout != "echo: hello there\n" {
		t.Errorf("chat -q: %+v", got)
	}
	got := runAgentWith(t, home, nil, "one\ntwo\n", "chat")
	got.check(t, 0, "echo: one\n", "echo: two\n")
	if got := runAgentWith(t, home, nil, "exit\nnot read\n", "chat"); got.code != 0 || strings.Contains(got.stdout, "not read") {
		t.Errorf("exit does not end the prompt: %+v", got)
	}
}

func TestReadmeNamesEveryKnobAndCommand(t *testing.T) {
	readme := readFile(t, "README.md")
	for _, name := range slices.Concat(knobNames(), commandNames()) {
		if !strings.Contains(readme, "`"+name) {
			t.Errorf("README.md does not mention `%s`", name)
		}
	}
}
