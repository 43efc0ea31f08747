package proc

import (
	"bufio"
	"os/exec"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// A process has lowered its limit to the mark of root's service and has left its parents. It must count for no service of root
// in hinit tree, top, the page and the metrics.
func TestAProcessOfTheAgentsIsNotShownAsRootsService(t *testing.T) {
	const base, first = firstMark, firstMark - markStep
	marks := map[int]Mark{
		1: {base, 0}, 10: {first, 0}, 20: {first - markStep, 10000},
		11: {first, 0}, 12: {first - 1<<20, 0}, 21: {first - markStep, 10000}, 22: {first - markStep, 0},
		66: {first, 10000}, 67: {first - markStep, 10001}, 68: {first, 10000},
	}
	all := map[int]stat{69: {Parent: 66}, 13: {Parent: 12}}
	for pid := range marks {
		all[pid] = stat{Parent: 1}
	}
	all[1], all[68] = stat{}, stat{Parent: 50} // process 68 belongs to another hinit
	owners := ServiceRoots{Init: 1, Mains: map[int]string{10: "root's", 20: "agent's"}, Mark: func(pid int) (Mark, bool) {
		m, ok := marks[pid]
		return m, ok
	}}.Owners(all)
	for pid, want := range map[int]int{
		10: 10, 11: 10, 12: 10, 13: 10, 20: 20, 21: 20, 22: 20, // a process that belongs to root may have this mark by chance
		1: 0, 66: 0, 67: 0, 68: 0, 69: 0,
	} {
		if owners[pid] != want {
			t.Errorf("process %d counts for the service of process %d, want %d", pid, owners[pid], want)
		}
	}
}

// hinit tree and the metrics must show the processes of the newest service, although their mark is also hinit's own limit.
func TestTheNewestServiceKeepsItsProcesses(t *testing.T) {
	const old, newest = firstMark - markStep, firstMark - 2*markStep
	limits := map[int]uint64{1: newest, 10: old, 11: old, 20: newest, 21: newest, 30: 500000, 31: 500000}
	all := make(map[int]stat)
	for pid := range limits {
		all[pid] = stat{Parent: 1, Session: pid, Group: pid}
	}
	all[1] = stat{}
	owners := ServiceRoots{Init: 1, Mains: map[int]string{10: "old", 20: "newest", 30: "limited"}, Mark: func(pid int) (Mark, bool) {
		return Mark{Limit: limits[pid]}, true
	}}.Owners(all)
	for pid, want := range map[int]int{11: 10, 21: 20, 31: 0} {
		if owners[pid] != want {
			t.Errorf("process %d counts for the service of process %d, want %d", pid, owners[pid], want)
		}
	}
}

// A chain of 3,000 processes, each in its own session, must count for its service.
func TestALongChainCountsForItsService(t *testing.T) {
	all := map[int]stat{1: {}}
	for pid := 2; pid < 3000; pid++ {
		all[pid] = stat{Parent: pid - 1, Session: pid, Group: pid}
	}
	for range 5 {
		owners := ServiceRoots{Init: 1, Mains: map[int]string{2: "a"}}.Owners(all)
		for pid := 2; pid < 3000; pid++ {
			if owners[pid] != 2 {
				t.Fatalf("process %d counts for %d", pid, owners[pid])
			}
		}
	}
}

// A stop must kill no process of another hinit that gives its services the same marks. Against services that fork faster than
// /proc can be read, hinit also tries the next PIDs.
func TestAStopKillsNoProcessOfAnotherHinit(t *testing.T) {
	table := newTable(t)
	other := exec.CommandContext(t.Context(), "/bin/sh", "-c", "sleep 1000 & echo $!; wait")
	out, err := other.StdoutPipe()
	if err == nil {
		err = other.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = other.Wait() })
	theirs, err := strconv.Atoi(readLine(t, bufio.NewReader(out)))
	if err != nil {
		t.Fatal(err)
	}
	spawn(t, table, Spec{ID: 1, Name: "svc", Argv: []string{"/bin/sleep", "1000"}})
	mark := table.runs[1].mark
	if err := unix.Prlimit(theirs, unix.RLIMIT_RTTIME, &unix.Rlimit{Cur: mark, Max: mark}, nil); err != nil || mark == 0 {
		t.Fatal(mark, err)
	}
	if there, hit := table.killMember(theirs, 1); !there || hit {
		t.Errorf("it is there: %v, it was killed: %v", there, hit)
	}
	if st, ok := table.procfs.readStat(theirs); !ok || st.Dead() {
		t.Error("it has ended")
	}
}
