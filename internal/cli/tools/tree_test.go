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
		// a child of the service, in a session of its own
		{Stat: procstat.Stat{PID: 12, Parent: 11, Session: 12}, mark: proc.Mark{Limit: first}},
		// a process of the service whose parents have ended
		{Stat: procstat.Stat{PID: 13, Parent: 1, Session: 13}, mark: proc.Mark{Limit: first}},
		// a process that another hinit inside the service has started
		{Stat: procstat.Stat{PID: 14, Parent: 1, Session: 14}, mark: proc.Mark{Limit: first - 1<<20}},
		// main process of the other service
		{Stat: procstat.Stat{PID: 20, Parent: 1, Session: 20}, mark: proc.Mark{Limit: second}},
		// a process whose mark can't be read
		{Stat: procstat.Stat{PID: 21, Parent: 1, Session: 20}, mark: proc.Mark{Limit: 0}},
		// a command of docker exec
		{Stat: procstat.Stat{PID: 30, Parent: 0, Session: 30}, mark: proc.Mark{Limit: own}},
		{Stat: procstat.Stat{PID: 31, Parent: 30, Session: 30}, mark: proc.Mark{Limit: own}},
		// the PID was used before by an older process
		{Stat: procstat.Stat{PID: 9, Parent: 10, Session: 10}, mark: proc.Mark{Limit: first}},
		// another hinit, started by docker exec
		{Stat: procstat.Stat{PID: 50, Parent: 30, Session: 50}, mark: proc.Mark{Limit: own}},
		// a service of that other hinit, with the same mark
		{Stat: procstat.Stat{PID: 51, Parent: 50, Session: 51}, mark: proc.Mark{Limit: first}},
		// a process of a sidecar container
		{Stat: procstat.Stat{PID: 60, Parent: 61, Session: 60}, mark: proc.Mark{Limit: first}},
		// a process of another PID namespace
		{Stat: procstat.Stat{PID: 70, Parent: 0, Session: 70}, nested: true},
		// a process of a PID namespace that the service made
		{Stat: procstat.Stat{PID: 71, Parent: 12, Session: 71}, mark: proc.Mark{Limit: first}, nested: true},
		// a process of the agent that has set its limit to the mark of root's service
		{Stat: procstat.Stat{PID: 80, Parent: 1, Session: 80}, mark: proc.Mark{Limit: first, User: 10000}},
		{Stat: procstat.Stat{PID: 40, Parent: 41, Session: 40}},
		// two processes that name each other as parent, as a racing read may show them
		{Stat: procstat.Stat{PID: 41, Parent: 40}},
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

// hinit tree must limit the indentation of a chain of processes. Without a limit, a chain of 30,000 would print a gigabyte of
// blanks.
func TestALongChainOfProcessesIsIndentedOnlySoFar(t *testing.T) {
	var out strings.Builder
	treeBranch{Name: "a", Processes: []treeProcess{{PID: 2, Depth: 30_000, Command: "sleep"}}}.print(&cli.Terminal{Out: &out}, 0)
	if got := out.String(); len(got) > 1000 || !strings.HasSuffix(got, "    sleep\n") {
		t.Errorf("%d bytes: %q", len(got), got[max(0, len(got)-100):])
	}
}
