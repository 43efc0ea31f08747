package profiles

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"hinit/internal/fsutil"
	"hinit/internal/testkit"
)

// runStoppedHelper is the helper "held": it stops its process with SIGSTOP while it reads the volume, and
// prints the result.
func runStoppedHelper(s *Store) {
	_, err := examineEach(s, func(*fsutil.Dir, reportProgress) (any, error) {
		err := syscall.Kill(os.Getpid(), syscall.SIGSTOP)
		<-time.After(10 * time.Millisecond) // Another thread may handle the signal.
		return nil, err
	})
	fmt.Print(err)
}

// TestAVolumeIsNotTakenForDeadByAnInitThatWasHeldUpItself checks that a paused container does not
// report its volume as hung.
func TestAVolumeIsNotTakenForDeadByAnInitThatWasHeldUpItself(t *testing.T) {
	t.Parallel() // This test mostly waits, so it runs beside others.
	s := NewVolume(t)
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Env = append(os.Environ(), EnvHelper+"=held", "PROFILES_TEST_HOME="+s.root)
	answer := make(chan string, 1)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd.Stdout = w
	err = cmd.Start()
	_ = w.Close()
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(answer)
		text := make([]byte, 100)
		n, _ := r.Read(text)
		answer <- string(text[:n])
	}()
	testkit.Until(t, "it is stopped", func() bool {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
		return err == nil && strings.Contains(string(text), ") T ")
	})
	<-time.After(answerTimeout + answerTimeout/2)
	got := ""
	testkit.Until(t, "it continues", func() bool {
		_ = cmd.Process.Signal(syscall.SIGCONT) // An error means that the process has ended.
		select {
		case got = <-answer:
		default:
		}
		return got != ""
	})
	if got != "<nil>" {
		t.Errorf("the volume was asked, and the answer is %s", got)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}
