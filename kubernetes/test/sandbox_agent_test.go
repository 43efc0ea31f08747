package test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"hinit/kubernetes/internal/cluster"
)

// toolResult is one result that the example agent's terminal tool prints.
type toolResult struct {
	Output    string `json:"output"`
	Code      int    `json:"exit_code"`
	Container string `json:"container"`
}

// terminal starts the example agent in the agents' pod, and runs commands with its terminal tool.
func (a *agentPod) terminal(turns ...map[string]any) (out []toolResult) {
	a.t.Helper()
	var input strings.Builder
	for _, turn := range turns {
		line, _ := json.Marshal(turn) // Marshal never fails for strings and numbers.
		input.Write(append(line, '\n'))
	}
	r := a.runWithInput(input.String(), "exec", "-i", "agents-0", "-c", "agents", "--",
		"env", "HERMES_DOCKER_BINARY=/opt/hinit/docker", "TERMINAL_DOCKER_IMAGE=hinit-demo",
		`TERMINAL_DOCKER_EXTRA_ARGS=["-v", "/opt/data/bash:/bin/bash:ro"]`, "/opt/hermes/.venv/bin/hermes", "terminal")
	for line := range strings.Lines(r.output) {
		var said toolResult
		if json.Unmarshal([]byte(line), &said) == nil {
			out = append(out, said)
		}
	}
	if r.exitCode != 0 || len(out) != len(turns) {
		a.t.Fatal(r)
	}
	return out
}

func command(text string) map[string]any { return map[string]any{"command": text} }

// TestTheAgentsTerminalToolRunsInPods checks that the agent's usual docker calls work on a cluster: it makes its
// container, runs commands and finds the container again.
func TestTheAgentsTerminalToolRunsInPods(t *testing.T) {
	cluster.SkipIfShort(t)
	bash, err := os.ReadFile(filepath.Join("../../dist/linux-"+runtime.GOARCH, "bash"))
	if err != nil {
		t.Skip("no static bash, which the terminal tool needs in a sandbox: make dist/linux-" + runtime.GOARCH + "/bash")
	}
	a := withSandboxes(t)
	if err := os.WriteFile(filepath.Join(a.volume, "bash"), bash, 0o755); err != nil { //nolint:gosec // the agents run this program
		t.Fatal(err)
	}
	said := a.terminal(
		command("cd /workspace && export GREETING=hello && echo made > note && hostname"),
		command(`echo $GREETING $(pwd) $(cat note)`), command("(exit 7)"),
		map[string]any{"command": "cat; echo err >&2; exit 3", "stdin": "given"},
		map[string]any{"command": "setsid sleep 7771 & (sleep 7772 &); echo begun; sleep 7773", "timeout": 1.5},
		command("ps | grep -c '[s]leep 777'"),
	)
	for i, want := range []toolResult{
		{"", 0, ""}, {"hello /workspace made\n", 0, ""}, {"", 7, ""}, {"err", 3, ""}, {"[Command timed out after 1.5s]", 124, ""}, {"0\n", 1, ""},
	} {
		if said[i].Code != want.Code || !strings.Contains(said[i].Output, want.Output) {
			t.Errorf("command %d: %+v", i, said[i])
		}
	}
	if !strings.Contains(said[3].Output, "given") {
		t.Errorf("its input: %+v", said[3])
	}
	again := a.terminal(command("cat /workspace/note; hostname"))[0]
	if again.Output != "made\n"+said[0].Output || !strings.HasPrefix(said[0].Container, again.Container) {
		t.Errorf("another process of the agent has %+v, the first had %+v", again, said[0])
	}

	done := make(chan []toolResult, 1)
	go func() {
		done <- a.terminal(command("echo ran >> /workspace/ran; sleep 600"), command("cat /workspace/note /workspace/ran"))
	}()
	a.eventually("the command has begun", func() string {
		_, err := os.Stat(filepath.Join(a.volume, "sandboxes/docker/default/workspace/ran"))
		return map[bool]string{true: "not yet"}[err != nil]
	})
	a.mustRun("delete", "pods", "-l", "hinit.dev/sandbox", "--wait=false")
	said = <-done
	lost := said[0].Code == 137 && strings.Contains(said[0].Output, "was not run again")
	if !lost || said[1].Output != "made\nran\n" || strings.HasPrefix(said[1].Container, again.Container) {
		t.Errorf("the pod was deleted under a command: %+v", said)
	}
}
