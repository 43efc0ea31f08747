package procusage

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"hinit/internal/proc"
)

// The usage of a service counts all descendants, and orphans that kept the session or the group, and no other process.
func TestUsageIsThatOfTheTree(t *testing.T) {
	before := Table{10: {Parent: 1, CPU: 100, Start: 1}, 30: {Parent: 1, CPU: 7, Start: 9}}
	now := Table{
		1:  {CPU: 1000, Memory: 1000},
		10: {Parent: 1, Session: 10, CPU: 150, Start: 1, Memory: 3},
		11: {Parent: 10, Session: 10, CPU: 50, Start: 5, Memory: 2},
		12: {Parent: 11, Session: 12, Start: 5, Memory: 1},
		13: {Parent: 1, Session: 10, Start: 5, Memory: 1},           // an orphan that has kept the session
		14: {Parent: 1, Session: 7, Group: 10, Start: 5, Memory: 1}, // an orphan that has kept the process group
		30: {Parent: 1, Session: 30, CPU: 9, Start: 10, Memory: 4},
		40: {Parent: 1, Session: 40, CPU: 500, Memory: 9},
		50: {Parent: 51, Session: 50}, 51: {Parent: 50, Session: 50},
	}
	mains := map[int]string{10: "a", 30: "b"}
	got := now.UsageByService(proc.ServiceRoots{Mains: mains}, before, 2*time.Second)
	want := map[string]Usage{"a": {CPU: 1.0 / 2, Memory: 8, Processes: 5}, "b": {CPU: 0.09 / 2, Memory: 4, Processes: 1}}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := now.UsageByService(proc.ServiceRoots{Mains: mains}, nil, time.Second)["a"]; got != (Usage{Memory: 8, Processes: 5}) {
		t.Errorf("without a measurement before: %v", got)
	}
}

func TestThisProcessIsRead(t *testing.T) {
	table, err := ReadProcesses("/proc")
	if err != nil {
		t.Fatal(err)
	}
	if p := table[os.Getpid()]; p.Parent != os.Getppid() || p.Memory == 0 || p.Threads == 0 {
		t.Errorf("%+v", p)
	}
}

// FindProc must return this process's /proc for its own socket, and nothing for another PID or a dead socket.
func TestOnlyTheRightProcIsRead(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	if root := FindProc(socket, os.Getpid()); root != "/proc" {
		t.Errorf("found %q", root)
	}
	if root := FindProc(socket, 1<<30); root != "" {
		t.Errorf("found %q for a process that is not there", root)
	}
	_ = l.Close()
	if root := FindProc(socket, os.Getpid()); root != "" {
		t.Errorf("found %q behind a dead socket", root)
	}
}
