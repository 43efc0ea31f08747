package initlog

import (
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/testkit"
)

func TestAWarningIsPrintedOnceAndKept(t *testing.T) {
	var out strings.Builder
	var kept []string
	v := New(func() io.Writer { return &out }, func(warning string) bool {
		if slices.Contains(kept, warning) {
			return false
		}
		kept = append(kept, warning)
		return true
	}, NewTerminationLog())
	v.Warn("no room for %s", "two\nlines")
	v.Warn("no room for %s", "two\nlines")
	v.Say("%d settings changed", 2)
	v.Print("as it is: 100%d")
	const want = "[hinit] warning: no room for two"
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	if len(lines) != 3 || !strings.HasPrefix(lines[0], want) || lines[1] != "[hinit] 2 settings changed" || lines[2] != "as it is: 100%d" {
		t.Errorf("it said\n%s", out.String())
	}
	if len(kept) != 1 || strings.Contains(kept[0], "\n") {
		t.Errorf("it kept %q", kept)
	}
}

// TestTheTerminationMessageTellsWhatCameBefore checks that the termination message contains the last lines of hinit's
// log while the container runs. kubectl describe then shows them also for a container that the kernel has killed.
func TestTheTerminationMessageTellsWhatCameBefore(t *testing.T) {
	w := &TerminationLog{path: t.TempDir() + "/termination-log", wake: make(chan struct{}, 1)}
	if err := os.WriteFile(w.path, []byte(strings.Repeat("old", 5000)), 0o666); err != nil {
		t.Fatal(err)
	}
	v := New(func() io.Writer { return io.Discard }, func(string) bool { return true }, w)
	v.Say("gateway-coder: exited with code 1 after 3s (crash)")
	v.AddToTermination("gateway-coder: token sk-ant-api03-abcdefghijklmnopqrstuvwxyz0123456789-abcdefghijklmnop is wrong")
	has := func() string {
		text, err := os.ReadFile(w.path)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	testkit.Until(t, "the message of a container that the kernel kills", func() bool {
		return strings.HasPrefix(has(), killedMessage+"\n[hinit] gateway-coder: exited with code 1") && strings.Contains(has(), "is wrong")
	})
	if strings.Contains(has(), "abcdefghijklmnop") {
		t.Errorf("the message has a secret: %s", has())
	}
	for range 100 {
		v.Say("%s", strings.Repeat("long ", 100))
	}
	v.End(3)
	v.Say("too late")
	if text := has(); !strings.HasPrefix(text, "exit code 3, after:\n") || len(text) > maxMessageBytes || strings.Contains(text, "too late") {
		t.Errorf("%d bytes: %s", len(text), text)
	}
}

// TestAContainerWhoseConsoleIsNotReadEnds checks that a last message to a console without a reader does not keep PID 1 from its
// end. Otherwise the engine kills the container, and the exit code of its CMD is lost.
func TestAContainerWhoseConsoleIsNotReadEnds(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	fd := int(w.Fd())
	for err = unix.SetNonblock(fd, true); err == nil; { // fill the pipe, as after a reader that stalls
		_, err = unix.Write(fd, make([]byte, 1<<16))
	}
	if err := unix.SetNonblock(fd, false); err != nil {
		t.Fatal(err)
	}
	was := os.Stderr
	os.Stderr = w
	ended := make(chan struct{})
	go func() {
		WriteStderr(errors.New("lines are lost"))
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(testkit.Patience):
		t.Fatal("the message waits for the reader")
	}
	os.Stderr = was
	const want = "[hinit] lines are lost\n"
	text := make([]byte, 1<<16+len(want))
	if _, err := io.ReadFull(r, text); err != nil || !strings.HasSuffix(string(text), want) {
		t.Errorf("stderr ends with %q, %v", text[len(text)-40:], err)
	}
	_ = w.Close()
}
