package main

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/testkit"
)

// TestMain lets this test binary act as the benchmark's own binary.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && strings.HasPrefix(os.Args[1], "@") {
		if err := runRole(os.Args[1], os.Args[2:]); err != nil {
			os.Stderr.WriteString(os.Args[1] + ": " + err.Error() + "\n")
			os.Exit(125)
		}
		os.Exit(0)
	}
	testkit.IsolateProcess()
	os.Exit(m.Run())
}

// newBench returns a bench without candidates.
func newBench(t *testing.T) *bench {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, for a PID namespace")
	}
	runtime.LockOSThread() // main locks its thread, too.
	t.Cleanup(runtime.UnlockOSThread)
	probe := exec.Command("/bin/true")
	probe.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS}
	if err := probe.Run(); errors.Is(err, unix.EPERM) && os.Getenv("CI") != "true" {
		t.Skipf("cannot make a PID namespace: %v", err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return &bench{self: self, sleep: "/bin/sleep", work: t.TempDir(), figures: newFigures(), quick: true, runs: 1}
}

// TestCandidateIsWatchedAndEnds checks that the benchmark can start, measure and end a candidate.
// It uses the loop, which is always installed.
func TestCandidateIsWatchedAndEnds(t *testing.T) {
	b := newBench(t)
	s, err := b.newSite(7)
	if err != nil {
		t.Fatal(err)
	}
	i, err := b.start(loopPeer{b.self}, s)
	if err != nil {
		t.Fatal(err)
	}
	defer i.kill()
	took, err := i.timeBoot()
	if err != nil || took <= 0 {
		t.Fatalf("boot of %v, %v", took, err)
	}
	if err := i.awaitRest(); err != nil {
		t.Fatal(err)
	}
	u, err := i.memory()
	if err != nil {
		t.Fatal(err)
	}
	if u.processes != 1 || u.services != 7 || u.pss < 100<<10 || u.tables == 0 {
		t.Errorf("usage is %+v", u)
	}
	if err := i.runInside("/bin/sh", "-c", "(: &)"); err != nil {
		t.Fatal(err)
	}
	if err := until("the end of the orphan", time.Millisecond, func() (bool, error) {
		n, err := i.zombies()
		return n > 0, err
	}); err != nil {
		t.Fatal(err)
	}
	if _, n, err := i.awaitReaped(0); err != nil || n != 1 {
		t.Errorf("the loop, which reaps nobody, has left %d zombies, %v", n, err)
	}
	if took, err = i.terminate(15); err != nil || took <= 0 {
		t.Errorf("stop of %v, %v", took, err)
	}
	if i.alive() {
		t.Error("it is alive after its end")
	}
}

func TestCandidateThatEndsEarlyIsNotWaitedFor(t *testing.T) {
	b := newBench(t)
	s, err := b.newSite(2)
	if err != nil {
		t.Fatal(err)
	}
	i, err := b.start(plainInit{program: "/bin/false"}, s)
	if err != nil {
		t.Fatal(err)
	}
	defer i.kill()
	if _, err := i.timeBoot(); err == nil || !strings.Contains(err.Error(), "0 of 2") {
		t.Errorf("booted says %v", err)
	}
}

func TestCandidateThatFailsIsLeftOut(t *testing.T) {
	b := newBench(t)
	g, err := startCandidates(b, "M7", []peer{plainInit{program: "/bin/false"}}, 1, false)
	defer g.kill()
	if err != nil || len(g.instances) != 0 || len(b.notes) != 1 {
		t.Errorf("%d instances, notes %q, error %v", len(g.instances), b.notes, err)
	}
}
