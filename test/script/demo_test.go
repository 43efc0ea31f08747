package script_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"hinit/test/pages"
)

// TestTheDemoAnswersKeys looks at the live view of the demo on a terminal, and presses its keys. The gateway waits for a second after its
// crash, and the view is drawn twice a second: on a machine that is busy for a second it is not seen, and the demo is started again.
func TestTheDemoAnswersKeys(t *testing.T) {
	if testing.Short() || os.Geteuid() != 0 {
		t.Skip("takes seconds, and a PID namespace needs root here")
	}
	for tries := 1; ; tries++ {
		seen := playDemo(t)
		if view := waitingView(seen); view != "" {
			pictured(t, view)
			return
		}
		if tries == 10 {
			t.Fatalf("the screen never shows that gateway-coder waits:\n%s", seen)
		}
	}
}

// playDemo runs the demo, presses its keys, and returns what the terminal has shown.
func playDemo(t *testing.T) string {
	t.Helper()
	screen := filepath.Join(t.TempDir(), "screen")
	tty, inner, err := openTerminal(screen)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(built.bin, "hinit"), "demo", "--agent", filepath.Join(built.bin, "example-agent"))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = inner, inner, inner
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = inner.Close() // the demo has it
	go tty.record()
	shows := func(text string) {
		t.Helper()
		for end := time.Now().Add(40 * time.Second); ; {
			seen, _ := os.ReadFile(screen)
			if bytes.Contains(seen, []byte(text)) {
				return
			}
			if time.Now().After(end) {
				_ = cmd.Process.Kill()
				t.Fatalf("the screen never shows %q:\n%s", text, seen)
			}
			<-time.After(20 * time.Millisecond)
		}
	}
	press := func(key string) {
		t.Helper()
		if _, err := tty.master.WriteString(key); err != nil {
			t.Fatal(err)
		}
	}
	shows("keys: c crash")
	shows("gateway-coder: exited with code 1") // by itself, once
	press("u")
	shows("hinit start coder")
	press("c")
	shows("gateway-coder: ended by SIGKILL")
	press("s")
	shows("hinit stop coder")
	press("q")
	shows("nothing it started is left")
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	seen, err := os.ReadFile(screen)
	if err != nil {
		t.Fatal(err)
	}
	return string(seen)
}

// picture is what README shows of the demo. WRITE_PICTURE=1 draws it again.
const picture = "../../docs/img/demo.svg"

// waitingView finds, in what a terminal has shown, the view in which the gateway waits after its own crash; "" when it was not drawn.
func waitingView(seen string) string {
	for frame := range strings.SplitSeq(seen, "\x1b[H\x1b[2J") {
		if strings.Contains(frame, "gateway-coder    backoff  ") && strings.Contains(frame, "code 1 (crash)") && strings.Contains(frame, demoKeysBegin) {
			return strings.ReplaceAll(frame, "\r", "")
		}
	}
	return ""
}

// pictured compares the picture of the demo with a view of it.
func pictured(t *testing.T, view string) {
	t.Helper()
	view, _, _ = strings.Cut(view, "\x1b") // what is drawn after it
	view = regexp.MustCompile(`HINIT_CONFIG=\S+ \S+ `).ReplaceAllString(view, "HINIT_CONFIG=/tmp/hinit-demo-1/hinit.yaml hinit ")
	view = regexp.MustCompile(`/tmp\S*hinit-demo-[0-9]+`).ReplaceAllString(view, "/tmp/hinit-demo-1")
	view, _, _ = strings.Cut(view, "demo: ")
	if os.Getenv("WRITE_PICTURE") != "" {
		if err := os.WriteFile(picture, []byte(pages.Picture(view)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(picture)
	if err != nil {
		t.Fatal(err)
	}
	// The lines of the log depend on the moment; the table and the keys do not.
	table := func(text string) string {
		before, after, _ := strings.Cut(text, "the container's log:")
		_, keys, _ := strings.Cut(after, demoKeysBegin)
		keys, _, _ = strings.Cut(keys, "\n")
		return before + keys
	}
	if err := pages.Same(table(pages.Drawn(string(text))), table(view)); err != nil {
		t.Errorf("the picture is not what the demo shows: %v; draw it again with WRITE_PICTURE=1\n%s", err, view)
	}
}

const demoKeysBegin = "keys: c crash"
