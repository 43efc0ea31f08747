package policy

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"hinit/internal/fsutil"
	"hinit/sandbox"
	"hinit/sandbox/gate"
)

// gateAnswerEngine is an engine with one container, whose gate gives a fixed answer.
type gateAnswerEngine struct {
	fakeEngine

	answer string
}

func (a *gateAnswerEngine) Start(context.Context, string) error {
	c := a.containers["mine"]
	c.State, c.Started = sandbox.Running, time.Now()
	a.containers["mine"] = c
	return nil
}

func (a *gateAnswerEngine) Stop(context.Context, string, time.Duration) error {
	a.calls = append(a.calls, "stop")
	return nil
}

func (a *gateAnswerEngine) Exec(_ context.Context, _ string, spec sandbox.ExecSpec) (sandbox.Attachment, error) {
	if !slices.Contains(spec.Argv, "check") {
		a.calls = append(a.calls, "exec")
		return nil, nil
	}
	return fakeAttachment{strings.NewReader(a.answer)}, nil
}

type fakeAttachment struct{ io.Reader }

func (fakeAttachment) Write(p []byte) (int, error) { return len(p), nil }
func (fakeAttachment) Close() error                { return nil }
func (fakeAttachment) ErrorText() string           { return "" }

// TestOnlyTheGateOpensTheGate checks that only the gate's own answer opens a container's gate. An
// engine error, which a user can provoke, must not pass a container with unchecked mounts.
func TestOnlyTheGateOpensTheGate(t *testing.T) {
	root := t.TempDir()
	for name, answer := range map[string]string{
		"the engine's error":  "OCI runtime exec failed: exec failed: chdir to cwd: no such file or directory: unknown\n",
		"open at the start":   gate.StateOpened,
		"a line without end":  strings.Repeat("x", 1<<20),
		"nothing":             "",
		"another file's node": gate.StateWaiting + "1 1\n\n" + gate.VerdictGo,
	} {
		t.Run(name, func(t *testing.T) {
			c := newContainer("mine", "1000", "coder")
			c.State = "exited"
			c.Mounts = []sandbox.Mount{{Type: "volume", Target: gate.DirPrefix + "x"}, {Type: "bind", Source: root, Target: "/mnt"}}
			e := &gateAnswerEngine{fakeEngine: fakeEngine{containers: map[string]sandbox.Container{"mine": c}}, answer: answer}
			g := Guard(e, Policy{Roots: []string{root}}, Owner{UID: 1000, Profile: "coder", Volume: "here"}, PathTranslator{}, newReadyGate())
			if err := g.Start(t.Context(), "mine"); err == nil || !slices.Contains(e.calls, "stop") {
				t.Errorf("it was started (%v), and the engine was told to %v", err, e.calls)
			}
			if name == "open at the start" { // A container that already runs when the service restarts gives this answer.
				return
			}
			if _, err := g.Exec(t.Context(), "mine", sandbox.ExecSpec{Argv: []string{"x"}}); err == nil || slices.Contains(e.calls, "exec") {
				t.Errorf("a command ran in it: %v, %v", err, e.calls)
			}
		})
	}
}

// gvisorEngine is an engine whose containers see other device and inode numbers than the host.
type gvisorEngine struct {
	gateAnswerEngine

	mounted string
}

func (e *gvisorEngine) Exec(context.Context, string, sandbox.ExecSpec) (sandbox.Attachment, error) {
	service, program := net.Pipe()
	go func() {
		defer program.Close()
		fmt.Fprint(program, gate.StateWaiting, "1 1\n\n")
		for lines := bufio.NewScanner(program); lines.Scan(); fmt.Fprintln(program, lines.Text()) {
			if info, err := os.Stat(e.mounted); err == nil && lines.Text()+"\n" == gate.CommandAccessTimes {
				fmt.Fprintln(program, fsutil.Stat(info).Atim.Nano())
			}
		}
	}()
	return conn{service}, nil
}

type conn struct{ net.Conn }

func (conn) ErrorText() string { return "" }

// TestAMountIsKnownOnAKernelWithNumbersOfItsOwn checks that a sandbox with a mount starts on
// gVisor, whose device and inode numbers differ from the host's.
func TestAMountIsKnownOnAKernelWithNumbersOfItsOwn(t *testing.T) {
	for _, elsewhere := range []bool{false, true} {
		root := t.TempDir()
		e := &gvisorEngine{mounted: root + "/home"}
		if elsewhere {
			e.mounted = t.TempDir()
		}
		c := newContainer("mine", "1000", "coder")
		c.State = "exited"
		c.Mounts = []sandbox.Mount{{Type: "volume", Target: gate.DirPrefix + "x"}, {Type: "bind", Source: root + "/home", Target: "/mnt"}}
		if err := os.Mkdir(root+"/home", 0o700); err != nil {
			t.Fatal(err)
		}
		e.gateAnswerEngine = gateAnswerEngine{fakeEngine: fakeEngine{containers: map[string]sandbox.Container{"mine": c}}}
		g := Guard(e, Policy{Roots: []string{root}}, Owner{UID: 1000, Profile: "coder", Volume: "here"}, PathTranslator{}, newReadyGate())
		if err := g.Start(t.Context(), "mine"); (err == nil) == elsewhere {
			t.Errorf("mounted elsewhere: %v; the start said: %v", elsewhere, err)
		}
		if info, err := os.Stat(root + "/home"); err != nil || fsutil.Stat(info).Atim.Nano() > time.Now().UnixNano() {
			t.Error("the access time is not put back:", err)
		}
	}
}
