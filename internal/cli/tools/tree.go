package tools

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"hinit/client"
	"hinit/internal/account"
	"hinit/internal/cli"
	"hinit/internal/cmdline"
	"hinit/internal/control/show"
	"hinit/internal/proc"
	"hinit/internal/procstat"
	"hinit/internal/procusage"
)

var treeVerb = cli.Verb{
	Name: "tree", Action: "show the tree", SelectsServices: true, Args: "[NAME...] [--state STATE] [--json]",
	Summary: "show the processes of each service, those that left it behind too",
	Run:     withArgs(0, -1, showTree), EmptyResult: cli.EmptyList,
}

// treeBranch contains the processes of one service, of hinit, or of the container's CMD.
type treeBranch struct {
	Name      string        `json:"name"`      // a service, hinit, cmd, or "" for all others
	State     string        `json:"state"`     // state of the service, as in the status
	Processes []treeProcess `json:"processes"` // processes, each after its parent
}

// treeProcess is one process of a branch.
type treeProcess struct {
	PID         int     `json:"pid"`
	Parent      int     `json:"parent"` // parent's pid; 0 if the parent is in another PID namespace
	Depth       int     `json:"depth"`  // number of ancestors in this list
	User        string  `json:"user"`   // name of the user, or the uid
	State       string  `json:"state"`  // state of the process: one letter, as in proc_pid_stat(5)
	CPUSeconds  float64 `json:"cpu_seconds"`
	MemoryBytes uint64  `json:"memory_bytes"` // resident memory
	Command     string  `json:"command"`      // command, with secrets hidden
}

func showTree(t *cli.Terminal, c *cli.Call, names []string) int {
	branches, err := branches(t, names)
	return t.ShowResult(c, branches, err, func() {
		width := t.TableFormat(false).Width
		for i, b := range branches {
			if i > 0 {
				fmt.Fprintln(t.Out)
			}
			b.print(t, width)
		}
	})
}

// branches asks hinit for the services, and reads their processes from /proc.
func branches(t *cli.Terminal, names []string) ([]treeBranch, error) {
	st, err := t.Status(names...)
	if err != nil {
		return nil, err
	}
	if procPathOf(t, st.Init.PID) != "/proc" {
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
		runs, _ := t.Client().Runs(context.Background())
		for _, r := range runs {
			if r.End == nil && r.PID != 0 {
				roots = append(roots, treeRoot{r.Service, client.StateUp, r.PID})
			}
		}
	}
	all, err := procusage.ReadProcesses("/proc")
	if err != nil {
		return nil, err
	}
	of := procusage.ServiceRootsOf(st, "/proc")
	branches := buildTree(roots, all, of, isNested, len(names) == 0)
	for _, b := range branches {
		for i := range b.Processes {
			p := &b.Processes[i]
			mark, _ := of.Mark(p.PID) // an ended process seems to belong to root
			p.User, p.Command = userName(mark.User), procusage.CommandLine("/proc", p.PID)
		}
	}
	return branches, nil
}

// treeRoot is the main process of a service, the root of a branch.
type treeRoot struct {
	name, state string
	pid         int
}

// buildTree returns the processes of each service, without users and command lines. of finds the service of a process, and
// nested reports whether a process is in a deeper PID namespace. If rest is true, one more branch contains all other processes.
func buildTree(roots []treeRoot, all procusage.Table, of proc.ServiceRoots, nested func(pid int) bool, rest bool) []treeBranch {
	for _, r := range roots {
		if r.pid != of.Init && r.pid != 0 {
			of.Mains[r.pid] = r.name
		}
	}
	owner := of.Owners(all)
	grow := func(name, state string, main int, belongs func(pid int) bool) treeBranch {
		b := treeBranch{Name: name, State: state, Processes: []treeProcess{}}
		for _, p := range all.Tree(main, belongs) {
			b.Processes = append(b.Processes, treeProcess{
				PID: p.PID, Parent: p.Parent, Depth: p.Depth, State: string(p.State), CPUSeconds: float64(p.CPU) / procstat.TicksPerSecond, MemoryBytes: p.Memory,
			})
		}
		return b
	}
	branches := make([]treeBranch, 0, len(roots)+1)
	for _, r := range roots {
		branches = append(branches, grow(r.name, r.state, r.pid, func(pid int) bool { return pid == r.pid || r.pid != 0 && owner[pid] == r.pid }))
	}
	if !rest {
		return branches
	}
	own := os.Getpid()
	others := grow("", "", 0, func(pid int) bool {
		return owner[pid] == 0 && pid != of.Init && pid != own && (isDescendant(pid, of.Init, all) || of.Init == 1 && !nested(pid))
	})
	if len(others.Processes) > 0 {
		branches = append(branches, others)
	}
	return branches
}

// isDescendant reports whether the process pid is ancestor itself or one of its descendants.
func isDescendant(pid, ancestor int, all procusage.Table) bool {
	for range all {
		if pid == ancestor {
			return true
		}
		pid = all[pid].Parent
	}
	return false
}

func userName(uid uint32) string {
	number := strconv.FormatUint(uint64(uid), 10)
	u, _ := account.Lookup("", number) // after an error, the name is empty, and the uid replaces it
	return cmp.Or(u.Name, number)
}

// maxIndentDepth is the maximum depth of indents. An agent can make a chain of processes of any length.
const maxIndentDepth = 100

func (b treeBranch) print(t *cli.Terminal, width int) {
	title := show.EscapeName(b.Name)
	switch {
	case b.Name == "":
		title = "of no service"
	case b.State != "":
		title += ": " + b.State
	}
	fmt.Fprintln(t.Out, title)
	if len(b.Processes) == 0 {
		return
	}
	var text strings.Builder
	tw := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "  PID\tUSER\tSTATE\tCPU\tMEMORY\tCOMMAND")
	for _, p := range b.Processes {
		fmt.Fprintf(tw, "  %d\t%s\t%s\t%s\t%.1f MB\t%s%s\n", p.PID, show.EscapeName(p.User), p.State,
			show.FormatDuration(time.Duration(p.CPUSeconds*float64(time.Second))), float64(p.MemoryBytes)/1e6, strings.Repeat("  ", min(p.Depth, maxIndentDepth)), show.EscapeLine(p.Command))
	}
	_ = tw.Flush()
	for line := range strings.Lines(text.String()) {
		line = strings.TrimRight(line, " \n")
		if runes := []rune(line); width > 0 && len(runes) > width {
			line = string(runes[:width-1]) + "…"
		}
		fmt.Fprintln(t.Out, line)
	}
}

func isNested(pid int) bool { return len(procstat.ReadStatus(strconv.Itoa(pid)).Fields("NSpid")) > 1 }

var topologyVerb = cli.Verb{
	Name: "topology", Action: "show the topology", Args: "[" + strings.Join(client.TopologyModes, " | ") + "] [--dry-run] [--json]",
	Summary: "show or change how many gateways serve the profiles",
	Run:     changeTopology,
}

func changeTopology(t *cli.Terminal, c *cli.Call) int {
	var how client.Topology
	c.Flags.BoolVar(&how.DryRun, "dry-run", false, "print what it would do, and do nothing")
	modes, code, ok := c.Parse(t, 0, 1)
	if !ok {
		return code
	}
	if len(modes) == 1 {
		how.Mode, c.Verb.Action = modes[0], "change the topology"
		if !slices.Contains(client.TopologyModes, how.Mode) {
			return t.Fail(cmdline.ExitUsage, "cannot %s: expected: hinit topology %s%s", c.Action(), c.Verb.Args, cmdline.DidYouMean(how.Mode, client.TopologyModes))
		}
	}
	is, err := t.Client().Topology(context.Background(), how)
	return t.ShowResult(c, is, err, func() {
		for _, step := range is.Steps {
			fmt.Fprintln(t.Out, show.EscapeLine(step))
		}
		from := cmp.Or(is.DecidedBy, "default")
		if from == ".hinit-topology" {
			from = "asked for by hinit topology"
		}
		fmt.Fprintf(t.Out, "%s (%s)\n", is.Mode, from)
		if is.DryRun {
			fmt.Fprintln(t.Out, "this was a dry run: nothing was changed")
		}
	})
}
