package sandbox_test

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"hinit/internal/testkit"
)

// agent is a process of the example agent, controlled through its terminal tool.
type agent struct {
	p   *installation
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

// answer is the tool's answer to one command.
type answer struct {
	Output    string `json:"output"`
	Code      int    `json:"exit_code"`
	Container string `json:"container"`
}

// newAgent starts an agent. It adds env to the installation's environment.
func (p *installation) newAgent(env ...string) *agent {
	p.t.Helper()
	a := &agent{p: p, cmd: exec.Command(filepath.Join(built, "example-agent"), "terminal")}
	a.cmd.Env = append(append(cleanEnv(), p.env...), env...)
	a.cmd.Stderr = os.Stderr
	setUser(a.cmd, p.uid)
	var err error
	if a.in, err = a.cmd.StdinPipe(); err != nil {
		p.t.Fatal(err)
	}
	out, err := a.cmd.StdoutPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	a.out = bufio.NewScanner(out)
	a.out.Buffer(nil, 64<<20)
	if err := a.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(a.kill)
	return a
}

// send sends a command. Call receive for the answer.
func (a *agent) send(command, stdin string, timeout float64) {
	line, _ := json.Marshal(map[string]any{"command": command, "stdin": stdin, "timeout": timeout})
	if _, err := a.in.Write(append(line, '\n')); err != nil {
		a.p.t.Error(err)
	}
}

func (a *agent) receive() (reply answer) {
	a.p.t.Helper()
	if !a.out.Scan() {
		a.p.t.Fatalf("the agent has ended: %v", a.out.Err())
	}
	if err := json.Unmarshal(a.out.Bytes(), &reply); err != nil {
		a.p.t.Fatal(err)
	}
	return reply
}

// run runs one command.
func (a *agent) run(command string) answer {
	a.p.t.Helper()
	a.send(command, "", 60)
	return a.receive()
}

func (a *agent) close() {
	a.p.t.Helper()
	_ = a.in.Close()
	if err := a.cmd.Wait(); err != nil {
		a.p.t.Errorf("the agent ended with %v", err)
	}
}

// awaitProcess waits until the named process runs in the sandbox.
func (a *agent) awaitProcess(process string) {
	a.p.t.Helper()
	var last answer
	for end := time.Now().Add(testkit.Patience); ; {
		if last = a.run("ps"); strings.Contains(last.Output, process) {
			return
		}
		if time.Now().After(end) {
			a.p.t.Fatalf("there is no %s; containers %v; ps says %+v", process, a.p.containers(), last)
		}
	}
}

func (a *agent) kill() {
	_ = a.cmd.Process.Kill()
	_ = a.cmd.Wait()
}
