//go:build faults

package faultinject

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The file with the rules may change at any time, so one test checks all stages in order.
func TestRules(t *testing.T) {
	file := filepath.Join(t.TempDir(), "rules")
	t.Setenv(rulesVar, file)
	if err := BeforeCall(CallWrite, "x"); err != nil {
		t.Fatalf("without rules: %v", err)
	}
	traced := filepath.Join(t.TempDir(), "trace")
	rules := "write state ENOSPC skip=1 times=2\n* log short=3\nsync * delay=20ms\nrename * trace=" + traced + "\n"
	if err := os.WriteFile(file, []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	var got []bool
	for range 4 {
		got = append(got, errors.Is(BeforeCall(CallWrite, "a/state.json"), unix.ENOSPC))
	}
	if got[0] || !got[1] || !got[2] || got[3] {
		t.Errorf("the write fails in %v; want the second and the third to", got)
	}
	if err := BeforeCall(CallOpen, "state"); err != nil {
		t.Errorf("another call fails: %v", err)
	}
	if n, m := AllowedBytes(CallWrite, "the.log", 10), AllowedBytes(CallWrite, "other", 10); n != 3 || m != 10 {
		t.Errorf("writes have room for %d and %d, want 3 and 10", n, m)
	}
	begin := time.Now()
	if _ = BeforeCall(CallSync, "x"); time.Since(begin) < 20*time.Millisecond {
		t.Error("no delay")
	}
	answered := make(chan struct{})
	if err := os.WriteFile(file, []byte("sync * delay=1h times=1 trace="+traced+".begun\nrename * trace="+traced+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = BeforeCall(CallSync, "x")
		close(answered)
	}()
	for _, err := os.Stat(traced + ".begun"); err != nil; _, err = os.Stat(traced + ".begun") {
		<-time.After(time.Millisecond)
	}
	if err := os.WriteFile(file, []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	<-answered
	AfterCall(CallRename, "one")
	AfterCall(CallWrite, "two")
	if text, err := os.ReadFile(traced); err != nil || string(text) != "rename one\n" {
		t.Errorf("the trace is %q, %v", text, err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if n := AllowedBytes(CallWrite, "the.log", 10); n != 10 {
		t.Error("the rules are in force after their file is gone")
	}
}
