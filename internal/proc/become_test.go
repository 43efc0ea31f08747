package proc

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"hinit/internal/testkit"
	"hinit/internal/testproc"
)

// The agent leases its own program: whatever executes it waits for 45 s. PID 1 waited with it, and again at each restart.
func TestAFileThatTheAgentHoldsDoesNotStopPID1(t *testing.T) {
	if os.Getuid() != 0 {
		testkit.Cannot(t, "needs root")
	}
	dir := t.TempDir()
	program := filepath.Join(dir, "run")
	for _, err := range []error{
		os.Chmod(filepath.Dir(dir), 0o755), os.Chmod(dir, 0o755), os.WriteFile(program, []byte("#!/bin/sh\nexit 7\n"), 0o755), os.Chown(program, 10000, 10000), //nolint:gosec // it is executed
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	agent := &Cred{UID: 10000, GID: 10000}
	table := newTable(t)
	_, out := spawn(t, table, Spec{ID: 1, Name: "holder", Argv: testproc.Argv("lease", program), Dir: "/", Cred: agent})
	line(t, out)
	began := time.Now()
	for id := uint64(2); id < 5; id++ {
		if _, err := table.Spawn(Spec{ID: id, Name: "svc", Argv: []string{program}, Env: os.Environ(), Dir: dir, Cred: agent}); err != nil {
			t.Fatal(err)
		}
	}
	if took := time.Since(began); took > 20*time.Second { // one of them takes 45 s
		t.Errorf("three starts took %v", took)
	}
}

// No moment of a start belongs to the agent while PID 1 waits for it.
func TestAChildOfPID1ExecutesBeforeItIsTheAgents(t *testing.T) {
	agent := &Cred{UID: uint32(os.Geteuid()) + 1, GID: 1}
	if sys := sysProcAttr(Spec{Cred: agent}); sys.Credential != nil {
		t.Errorf("it changes its user between fork and execve: %+v", sys.Credential)
	}
}
