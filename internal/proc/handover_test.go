package proc

import (
	"bytes"
	"os"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"hinit/internal/testkit"
	"hinit/internal/testproc"
)

// EncodeAndDecode encodes was and decodes it into is. Package proc_test sets it, because package reexec imports this package.
var EncodeAndDecode func(was, is *Handover) error

// resumeTable makes the Table of a re-executed hinit from the state of old.
func resumeTable(t *testing.T, old *Table) *Table {
	t.Helper()
	was := old.HandOver()
	var is Handover
	if err := EncodeAndDecode(&was, &is); err != nil {
		t.Fatal(err)
	}
	table, err := TakeOver(is)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

func TestSuccessorKnowsTheRunsAndWhatTheyStarted(t *testing.T) {
	old := newTable(t)
	argv := testproc.Argv("escape", "clean")
	main, out := spawn(t, old, Spec{ID: 7, Name: "a", Path: argv[0], Argv: argv})
	daemon, err := strconv.Atoi(string(bytes.TrimSpace([]byte(readLine(t, out)))))
	if err != nil {
		t.Fatal(err)
	}
	testkit.Until(t, "the daemon is adopted", func() bool { s, ok := old.procfs.readStat(daemon); return ok && s.Parent == os.Getpid() })

	table := resumeTable(t, old)
	if got := table.MainPID(7); got != main {
		t.Fatalf("the main process is %d, not %d", got, main)
	}
	if err := table.Signal(7, int(unix.SIGKILL)); err != nil {
		t.Fatal(err)
	}
	var exit Exit
	testkit.Until(t, "the exit of the run", func() bool {
		table.Reap(true, func(x Exit) {
			if x.ID == 7 {
				exit = x
			}
		})
		return exit.ID == 7
	})
	if exit.PID != main || exit.Signal != 9 || !exit.Leftover {
		t.Errorf("got %+v", exit)
	}
	if n := table.SignalTree(7, int(unix.SIGKILL)); n != 1 {
		t.Errorf("%d processes of the run were found, not the daemon alone", n)
	}
	testkit.Until(t, "the daemon is gone", func() bool {
		table.Reap(false, func(Exit) {})
		return len(table.EndedRuns([]uint64{7})) == 1
	})
	// A new run must not get the mark of an old one.
	argv = testproc.Argv("sleep")
	_, out = spawn(t, table, Spec{ID: 8, Name: "b", Path: argv[0], Argv: argv})
	readLine(t, out)
	if m := table.runs[8].mark; m != 0 && m >= old.marker.ownLimit {
		t.Errorf("mark %d of the new run is not below %d", m, old.marker.ownLimit)
	}
}

func TestSuccessorReapsWhatEndedMeanwhile(t *testing.T) {
	old := newTable(t)
	argv := testproc.Argv("exit", "3")
	pid, _ := spawn(t, old, Spec{ID: 1, Name: "a", Path: argv[0], Argv: argv})
	testkit.Until(t, "it can be reaped", func() bool { ended, _ := findExitedChild(); return ended == pid })
	table := resumeTable(t, old)
	var got []Exit
	table.Reap(true, func(x Exit) { got = append(got, x) })
	if len(got) != 1 || got[0].ID != 1 || got[0].PID != pid || got[0].Code != 3 {
		t.Errorf("reaped %+v", got)
	}
}

func TestMainProcessOfALostExitIsNoMore(t *testing.T) {
	old := newTable(t)
	argv := testproc.Argv("exit", "3")
	pid, _ := spawn(t, old, Spec{ID: 1, Name: "a", Path: argv[0], Argv: argv})
	testkit.Until(t, "it can be reaped", func() bool { ended, _ := findExitedChild(); return ended == pid })
	reap(pid)
	table := resumeTable(t, old)
	if got := table.MainPID(1); got != 0 {
		t.Errorf("process %d counts as alive", got)
	}
	if n := table.SignalTree(1, int(unix.SIGKILL)); n != 0 {
		t.Errorf("%d processes were signalled", n)
	}
	if gone := table.EndedRuns([]uint64{1}); len(gone) != 1 {
		t.Errorf("gone: %v", gone)
	}
}
