package tools

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
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
	"hinit/internal/redact"
)

func treeVerb() cli.Verb {
	return cli.Verb{
		Name: "tree", Doing: "show the tree", Services: true, Args: "[NAME...] [--state STATE] [--json]",
		Help: `A process belongs to a service by its ancestors, its session, or the mark of the service's processes.
Processes of no service come last: commands from outside the container, and orphans. Processes of
another hinit or PID namespace are left out. Secret values in command lines are hidden.`,
		Run: tree, Empty: cli.EmptyList,
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

func tree(t *cli.Terminal, c *cli.Call) int {
	asJSON := c.Flags.Bool("json", false, "print JSON")
	names, code, ok := c.Parse(t, 0, -1)
	if !ok {
		return code
	}
	branches, err := branches(t, names)
	if err != nil {
		return t.Failed("show the tree", err)
	}
	if *asJSON {
		return t.Failed(c.Doing(), cli.WriteJSON(t.Out, branches))
	}
	width := t.Look(false).Width
	for i, b := range branches {
		if i > 0 {
			fmt.Fprintln(t.Out)
		}
		b.print(t, width)
	}
	return cmdline.Done
}

// branches asks hinit for the services, and /proc for their processes.
func branches(t *cli.Terminal, names []string) ([]treeBranch, error) {
	cl, err := t.Dial()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), cli.ShortWait)
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
	table, of := make(map[int]procstat.Stat, len(all)), proc.Roots{Init: init, Mains: make(map[int]string)}
	of.Mark = func(pid int) (proc.Mark, bool) { return all[pid].mark, true }
	for pid := range all {
		table[pid] = all[pid].Stat
	}
	for _, r := range roots {
		if r.pid != init && r.pid != 0 {
			of.Mains[r.pid] = r.name
		}
	}
	owner := of.Owners(table)
	branches := make([]treeBranch, 0, len(roots)+1)
	for _, r := range roots {
		b := treeBranch{Name: r.name, State: r.state, Processes: []treeProcess{}}
		b.add(all, user, r.pid, func(pid int) bool { return pid == r.pid || r.pid != 0 && owner[pid] == r.pid })
		branches = append(branches, b)
	}
	if rest {
		b := treeBranch{Processes: []treeProcess{}}
		own := os.Getpid()
		b.add(all, user, 0, func(pid int) bool {
			return owner[pid] == 0 && pid != init && pid != own && all[pid].PID != 0 && (below(pid, init, all) || init == 1 && !all[pid].nested)
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
			PID: p.PID, Parent: p.Parent, Depth: depth, User: user(p.mark.User), State: string(p.State),
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

func (b treeBranch) print(t *cli.Terminal, width int) {
	title := show.Name(b.Name)
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
		fmt.Fprintf(tw, "  %d\t%s\t%s\t%s\t%.1f MB\t%s%s\n", p.PID, show.Name(p.User), p.State,
			show.Duration(time.Duration(p.CPUSeconds*float64(time.Second))), float64(p.MemoryBytes)/1e6, strings.Repeat("  ", p.Depth), show.Line(p.Command))
	}
	_ = tw.Flush() // into memory
	for line := range strings.Lines(text.String()) {
		line = strings.TrimRight(line, " \n")
		if runes := []rune(line); width > 0 && len(runes) > width {
			line = string(runes[:width-1]) + "…"
		}
		fmt.Fprintln(t.Out, line)
	}
}

// process is one process as /proc shows it.
type process struct {
	procstat.Stat

	command string // for people: secrets are masked
	nested  bool   // it lives in another PID namespace, below this one
	mark    proc.Mark
}

// processes reads the process table. A process that ends meanwhile is left out.
func processes() map[int]process {
	all := make(map[int]process)
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		if p, ok := readProcess(dir); ok {
			all[p.PID] = p
		}
	}
	return all
}

func readProcess(dir string) (p process, ok bool) {
	stat, err := os.ReadFile(dir + "/stat")
	status, gone := os.ReadFile(dir + "/status")
	p.Stat, ok = procstat.Parse(stat)
	if err != nil || gone != nil || !ok {
		return p, false
	}
	if _, rest, found := strings.Cut(string(status), "\nNSpid:"); found {
		numbers, _, _ := strings.Cut(rest, "\n")
		p.nested = len(strings.Fields(numbers)) > 1
	}
	limits, _ := os.ReadFile(dir + "/limits")
	p.mark, _ = proc.ParseMark(limits, status)
	argv, _ := readHead(dir + "/cmdline")
	p.command = maskedCommand(strings.Split(strings.TrimRight(string(argv), "\x00"), "\x00"))
	if len(argv) == 0 {
		// a process that has ended, or a thread of the kernel
		p.command = "[" + string(stat[bytes.IndexByte(stat, '(')+1:bytes.LastIndexByte(stat, ')')]) + "]"
	}
	return p, true
}

// maskedCommand is a command line without its secrets: the values of flags and variables whose names say so, passwords in URLs, and tokens of
// known shapes.
func maskedCommand(argv []string) string {
	var masker redact.Masker
	words := make([]string, len(argv))
	secretNext := false
	for i, word := range argv {
		name, value, assigns := strings.Cut(word, "=")
		secret := redact.Name(strings.ReplaceAll(strings.TrimLeft(name, "-"), "-", "_"))
		switch {
		case secretNext && !strings.HasPrefix(word, "-"):
			word = redact.Hidden
		case assigns && secret && !strings.ContainsAny(name, " \t\n"):
			word = name + "=" + redact.Hidden
		case assigns:
			word = name + "=" + redact.Value("", value)
		default:
			word = redact.Value("", word)
		}
		secretNext = !assigns && secret && strings.HasPrefix(name, "--")
		words[i] = string(masker.Hide([]byte(word), nil))
	}
	return strings.Join(words, " ")
}

// mostHead bounds what is read of a file below /proc. A process can make the kernel show any part of its memory as its command line
// (prctl(2), PR_SET_MM), terabytes of zeros too.
const mostHead = 2 << 20

// readHead reads a file below /proc, as far as anybody but an adversary fills it.
func readHead(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, mostHead))
}
