package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"hinit/client"
	"hinit/internal/account"
	"hinit/internal/control/show"
	"hinit/internal/procstat"
)

func treeVerb() verb {
	return verb{
		name: "tree", doing: "show the tree", args: "[NAME...] [--json]", summary: "show the processes of each service, those that left it behind too",
		help: `A process belongs to a service by its ancestors, its session, or the mark that hinit gave the service's processes, as
when hinit stops it. What belongs to none is shown last: commands that were started in the container from outside, and
orphans. Processes of another hinit or of another PID namespace are left out, unless they descend from this hinit. In command lines, values whose names say that they are secret are hidden.`,
		run: tree,
	}
}

// treeBranch is the processes of one service.
type treeBranch struct {
	Name      string        `json:"name"`      // the service, hinit, cmd for the container's CMD; "" for what belongs to none
	State     string        `json:"state"`     // of the service, as in the status
	Processes []treeProcess `json:"processes"` // each one after its parent
}

// treeProcess is one process.
type treeProcess struct {
	PID         int     `json:"pid"`          // its number
	Parent      int     `json:"parent"`       // the number of its parent, 0 when that is outside
	Depth       int     `json:"depth"`        // how many ancestors it has in the list
	User        string  `json:"user"`         // whose it is: a name, or a uid that has none
	State       string  `json:"state"`        // one letter, as in proc_pid_stat(5): R, S, D, T, Z
	CPUSeconds  float64 `json:"cpu_seconds"`  // that it has used
	MemoryBytes uint64  `json:"memory_bytes"` // resident
	Command     string  `json:"command"`      // its command line, secrets hidden
}

func tree(t *terminal, c *call) int {
	asJSON := c.flags.Bool("json", false, "print JSON")
	names, code, ok := c.parse(t, 0, -1)
	if !ok {
		return code
	}
	branches, err := t.branches(names)
	if err != nil {
		return t.failed("show the tree", err)
	}
	if *asJSON {
		return t.failed(c.doing(), writeJSON(t.out, branches))
	}
	width := t.look(false).Width
	for i, b := range branches {
		if i > 0 {
			fmt.Fprintln(t.out)
		}
		b.print(t, width)
	}
	return exitDone
}

// branches asks hinit for the services, and /proc for their processes.
func (t *terminal) branches(names []string) ([]treeBranch, error) {
	cl, err := t.dial()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), shortWait)
	defer cancel()
	st, err := cl.Status(ctx, names...)
	if err != nil {
		return nil, err
	}
	if !visible(st.Init) {
		return nil, errors.New("this command does not see the processes of hinit; run it in the same container")
	}
	roots := make([]treeRoot, 0, len(st.Services)+2)
	if len(names) == 0 {
		roots = append(roots, treeRoot{name: "hinit", pid: st.Init.PID})
		if st.Init.Cmd != nil {
			roots = append(roots, treeRoot{name: "cmd", state: client.StateUp, pid: st.Init.Cmd.PID})
		}
	}
	for _, s := range st.Services {
		roots = append(roots, treeRoot{s.Name, s.State, s.PID})
	}
	if len(names) == 0 {
		if runs, err := cl.Runs(ctx); err == nil { // who may not ask sees them among the others
			for _, r := range runs {
				if r.End == nil && r.PID != 0 {
					roots = append(roots, treeRoot{r.Service, client.StateUp, r.PID})
				}
			}
		}
	}
	return growTree(roots, processes(), st.Init.PID, len(names) == 0, userNames()), nil
}

// treeRoot is a service and its main process, 0 for none.
type treeRoot struct {
	name, state string
	pid         int
}

// growTree gives each process to its service.
func growTree(roots []treeRoot, all map[int]process, init int, rest bool, user func(uint32) string) []treeBranch {
	owner := make(map[int]int) // pid → index of a root
	marks := make(map[uint64]int)
	for i, r := range roots {
		if p, lives := all[r.pid]; lives && r.pid != 0 {
			owner[r.pid] = i
			if r.pid != init && p.mark != 0 && p.mark != all[init].mark {
				marks[p.mark] = i
			}
		}
	}
	for _, pid := range slices.Sorted(maps.Keys(all)) {
		claim(pid, init, all, owner, marks)
	}
	branches := make([]treeBranch, 0, len(roots)+1)
	for i, r := range roots {
		b := treeBranch{Name: r.name, State: r.state, Processes: []treeProcess{}}
		b.add(all, user, r.pid, func(pid int) bool { at, owned := owner[pid]; return owned && at == i })
		branches = append(branches, b)
	}
	if rest {
		b := treeBranch{Processes: []treeProcess{}}
		own := os.Getpid()
		b.add(all, user, 0, func(pid int) bool {
			at, owned := owner[pid]
			return (!owned || at < 0) && pid != own && all[pid].PID != 0 && (below(pid, init, all) || init == 1 && !all[pid].nested)
		})
		if len(b.Processes) > 0 {
			branches = append(branches, b)
		}
	}
	return branches
}

// below reports whether a process descends from another one.
func below(pid, ancestor int, all map[int]process) bool {
	for range all {
		if pid == ancestor {
			return true
		}
		pid = all[pid].Parent
	}
	return false
}

// none is the owner of what belongs to no service.
const none = -1

// claim finds the service of a process: its nearest ancestor's, that of its session's leader, or that of its mark.
func claim(pid, init int, all map[int]process, owner map[int]int, marks map[uint64]int) int {
	if at, known := owner[pid]; known {
		return at
	}
	p, lives := all[pid]
	if !lives || pid == init {
		return none
	}
	owner[pid] = none // the table was not read in one instant: it may hold a circle
	at := none
	if p.Parent != init {
		at = claim(p.Parent, init, all, owner, marks)
	}
	if leader, known := owner[p.Session]; at == none && known && p.Session != init {
		at = leader
	}
	if at == none && p.Parent == init { // another hinit beside this one gives the same marks
		at = marked(p.mark, all[init].mark, marks)
	}
	owner[pid] = at
	return at
}

// marked finds the service that a mark is of. A hinit inside a service lowers the mark a little further for what it runs.
func marked(mark, own uint64, marks map[uint64]int) int {
	const step = 1 << 40 // of internal/proc, where hinit is the outermost
	at, nearest := none, uint64(step)
	for m, i := range marks {
		if mark != 0 && mark != own && mark <= m && m-mark < nearest {
			at, nearest = i, m-mark
		}
	}
	return at
}

// add appends the processes that belong, each one after its parent.
func (b *treeBranch) add(all map[int]process, user func(uint32) string, first int, belongs func(pid int) bool) {
	children := make(map[int][]int)
	var tops []int
	for _, pid := range slices.Sorted(maps.Keys(all)) {
		if !belongs(pid) {
			continue
		}
		if parent := all[pid].Parent; parent != pid && pid != first && belongs(parent) && all[parent].PID != 0 {
			children[parent] = append(children[parent], pid)
		} else {
			tops = append(tops, pid)
		}
	}
	if at := slices.Index(tops, first); at > 0 { // the main process comes first, whatever its number
		tops = slices.Insert(slices.Delete(tops, at, at+1), 0, first)
	}
	var walk func(pid, depth int)
	walk = func(pid, depth int) {
		p := all[pid]
		b.Processes = append(b.Processes, treeProcess{
			PID: p.PID, Parent: p.Parent, Depth: depth, User: user(p.uid), State: string(p.State),
			CPUSeconds: float64(p.CPU) / procstat.Hertz, MemoryBytes: p.Memory, Command: p.command,
		})
		for _, child := range children[pid] {
			walk(child, depth+1)
		}
	}
	for _, pid := range tops {
		walk(pid, 0)
	}
}

// userNames names users by /etc/passwd, which is read once for each.
func userNames() func(uint32) string {
	known := make(map[uint32]string)
	return func(uid uint32) string {
		name, asked := known[uid]
		if !asked {
			name = strconv.FormatUint(uint64(uid), 10)
			if u, err := account.Lookup("", name); err == nil && u.Name != "" {
				name = u.Name
			}
			known[uid] = name
		}
		return name
	}
}

func (b treeBranch) print(t *terminal, width int) {
	title := show.Name(b.Name)
	switch {
	case b.Name == "":
		title = "of no service"
	case b.State != "":
		title += ": " + b.State
	}
	fmt.Fprintln(t.out, title)
	if len(b.Processes) == 0 {
		return
	}
	var text strings.Builder
	tw := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "  PID\tUSER\tSTATE\tCPU\tMEMORY\tCOMMAND")
	for _, p := range b.Processes {
		fmt.Fprintf(tw, "  %d\t%s\t%s\t%s\t%.1f MB\t%s%s\n", p.PID, show.Name(p.User), p.State,
			show.Duration(time.Duration(p.CPUSeconds*float64(time.Second))), float64(p.MemoryBytes)/1e6, strings.Repeat("  ", p.Depth), show.Line(p.Command))
	}
	_ = tw.Flush() // into memory
	for line := range strings.Lines(text.String()) {
		line = strings.TrimRight(line, " \n")
		if runes := []rune(line); width > 0 && len(runes) > width {
			line = string(runes[:width-1]) + "…"
		}
		fmt.Fprintln(t.out, line)
	}
}
