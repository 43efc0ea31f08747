package dockercli

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"hinit/internal/testkit"
)

func TestProcess(t *testing.T) {
	name, parent, err := ProcessName(os.Getpid())
	if err != nil || parent != os.Getppid() {
		t.Errorf("%s, %d, %v", name, parent, err)
	}
	if again, _, _ := ProcessName(os.Getpid()); again != name {
		t.Errorf("%s and %s", name, again)
	}
	if _, _, err := ProcessName(1 << 30); err == nil {
		t.Error("there is no such process")
	}
}

func TestRecorder(t *testing.T) {
	w := &outputRecorder{}
	fmt.Fprint(w, "nginx is not")
	if _, gone := w.output(); gone {
		t.Error("half of it is not it")
	}
	fmt.Fprint(w, " running\n")
	if _, gone := w.output(); !gone {
		t.Error("it is in two pieces, and not seen")
	}
	for range 5 {
		_, _ = w.Write(make([]byte, maxRecorded))
	}
	if kept, gone := w.output(); !gone || len(kept) > 2*maxRecorded+100 {
		t.Errorf("after much output: %v, %d bytes kept", gone, len(kept))
	}
	if got := withoutGoneTexts("No such container: x is not running"); slices.ContainsFunc(containerGoneTexts, func(t []byte) bool { return strings.Contains(got, string(t)) }) {
		t.Error(got)
	}
}

// TestLives checks that an ended process counts as dead before it is reaped, and that invalid names
// count as dead.
func TestLives(t *testing.T) {
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	name, _, err := ProcessName(cmd.Process.Pid)
	if err != nil || !ProcessIsAlive(name) {
		t.Fatal("it lives", err)
	}
	_ = cmd.Process.Kill()
	testkit.Until(t, "it has ended", func() bool { return !ProcessIsAlive(name) })
	_ = cmd.Wait()
	for _, name := range []string{name, "", "x", "-1.5", "1073741824.1"} {
		if ProcessIsAlive(name) {
			t.Errorf("%q lives", name)
		}
	}
}
