package tools

import (
	"fmt"
	"strings"
	"testing"

	"hinit/internal/cli"
	"hinit/internal/proc"
	"hinit/internal/procstat"
	"hinit/internal/procusage"
)

func TestProcessesBelongToTheirServices(t *testing.T) {
	const own, first, second = 1 << 62, 1<<62 - 2<<40, 1<<62 - 4<<40
	type process struct {
		procstat.Stat
		mark   proc.Mark
		nested bool
	}
	all, table := map[int]process{}, procusage.Table{}
	for _, p := range []process{
		{Stat: procstat.Stat{PID: 1}, mark: proc.Mark{Limit: own}},
		{Stat: procstat.Stat{PID: 10, Parent: 1, Session: 10}, mark: proc.Mark{Limit: first}},
		{Stat: procstat.Stat{PID: 11, Parent: 10, Session: 10}, mark: proc.Mark{Limit: first}},
		{Stat: procstat.Stat{PID: 12, Parent: 11, Session: 12}, mark: proc.Mark{Limit: first}},               // a session of its own
		{Stat: procstat.Stat{PID: 13, Parent: 1, Session: 13}, mark: proc.Mark{Limit: first}},                // and left by its parents
		{Stat: procstat.Stat{PID: 14, Parent: 1, Session: 14}, mark: proc.Mark{Limit: first - 1<<20}},        // started by a hinit in the service
		{Stat: procstat.Stat{PID: 20, Parent: 1, Session: 20}, mark: proc.Mark{Limit: second}},               // the other service
		{Stat: procstat.Stat{PID: 21, Parent: 1, Session: 20}, mark: proc.Mark{Limit: 0}},                    // whose mark can't be read
		{Stat: procstat.Stat{PID: 30, Parent: 0, Session: 30}, mark: proc.Mark{Limit: own}},                  // docker exec
		{Stat: procstat.Stat{PID: 31, Parent: 30, Session: 30}, mark: proc.Mark{Limit: own}},                 //
		{Stat: procstat.Stat{PID: 9, Parent: 10, Session: 10}, mark: proc.Mark{Limit: first}},                // a number that was free again
		{Stat: procstat.Stat{PID: 50, Parent: 30, Session: 50}, mark: proc.Mark{Limit: own}},                 // another hinit, started by docker exec
		{Stat: procstat.Stat{PID: 51, Parent: 50, Session: 51}, mark: proc.Mark{Limit: first}},               // its service, whose mark is the same
		{Stat: procstat.Stat{PID: 60, Parent: 61, Session: 60}, mark: proc.Mark{Limit: first}},               // a process of a container beside this one
		{Stat: procstat.Stat{PID: 70, Parent: 0, Session: 70}, nested: true},                                 // of another PID namespace
		{Stat: procstat.Stat{PID: 71, Parent: 12, Session: 71}, mark: proc.Mark{Limit: first}, nested: true}, // of one that the service has made
		{Stat: procstat.Stat{PID: 80, Parent: 1, Session: 80}, mark: proc.Mark{Limit: first, User: 10000}},   // an agent's, which has lowered its limit to root's
		{Stat: procstat.Stat{PID: 40, Parent: 41, Session: 40}},
		{Stat: procstat.Stat{PID: 41, Parent: 40}}, // a circle, as it may be read
	} {
		all[p.PID], table[p.PID] = p, p.Stat
	}
	roots := []treeRoot{{"hinit", "", 1}, {"a", "up", 10}, {"b", "up", 20}, {"c", "down", 0}}
	var got strings.Builder
	of := proc.ServiceRoots{Init: 1, Mains: make(map[int]string), Mark: func(pid int) (proc.Mark, bool) { return all[pid].mark, true }}
	nested := func(pid int) bool { return all[pid].nested }
	for _, b := range buildTree(roots, table, of, nested, true) {
		fmt.Fprintf(&got, "%s:", b.Name)
		for _, p := range b.Processes {
			fmt.Fprintf(&got, " %d/%d", p.PID, p.Depth)
		}
		got.WriteString("\n")
	}
	const want = "hinit: 1/0\na: 10/0 9/1 11/1 12/2 71/3 13/0 14/0\nb: 20/0 21/0\nc:\n: 30/0 31/1 50/1 51/2 60/0 80/0\n"
	if got.String() != want {
		t.Errorf("got\n%swant\n%s", got.String(), want)
	}
}

// A chain of 30,000 processes made hinit tree take a gigabyte for blanks.
func TestALongChainOfProcessesIsIndentedOnlySoFar(t *testing.T) {
	var out strings.Builder
	treeBranch{Name: "a", Processes: []treeProcess{{PID: 2, Depth: 30_000, Command: "sleep"}}}.print(&cli.Terminal{Out: &out}, 0)
	if got := out.String(); len(got) > 1000 || !strings.HasSuffix(got, "    sleep\n") {
		t.Errorf("%d bytes: %q", len(got), got[max(0, len(got)-100):])
	}
}
