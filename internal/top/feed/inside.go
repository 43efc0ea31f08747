package feed

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"hinit/internal/proc"
	"hinit/internal/redact"
	"hinit/internal/top/model"
	"hinit/internal/usage"
)

// Limits for the details of a service.
const (
	mostProcesses = 64
	mostText      = 4 << 10
	mostEnviron   = 256 << 10
)

// Inside reads in /proc about the processes of a service, whose main process is pid. Secrets are left out as far as they can be told.
func (f *Feed) Inside(of model.ID, pid int) model.Inside {
	out := model.Inside{ID: of}
	if pid <= 0 {
		out.Missing = "it has no process"
		return out
	}
	root := f.proc()
	if root == "" {
		out.Missing = "its processes are not to be seen from here: ask inside the container, as root or as the agent's user"
		return out
	}
	all, err := usage.Read(root, nil)
	if err != nil {
		out.Missing = err.Error()
		return out
	}
	roots := proc.Roots{Mains: map[int]string{pid: of.Name}}
	if st := f.status.Load(); st != nil {
		roots = usage.RootsOf(*st, root)
	}
	out.Processes = tree(all, roots, pid, of.Name)
	for i := range out.Processes {
		out.Processes[i].Command = command(root, out.Processes[i].PID)
	}
	environ, err := readSome(fmt.Sprintf("%s/%d/environ", root, pid), mostEnviron)
	if err != nil {
		out.Missing = "its environment may not be read by this user"
	}
	out.Environment = environment(environ)
	return out
}

// tree lists the processes of a service, children below their parents, those that left the tree at the end.
func tree(all usage.Table, roots proc.Roots, main int, name string) (out []model.Process) {
	children := make(map[int][]int)
	var strays []int
	owners := roots.Owners(all)
	for pid, owner := range owners {
		if owner == 0 || roots.Mains[owner] != name {
			continue
		}
		if parent := all[pid].Parent; pid != main && owners[parent] != owner {
			strays = append(strays, pid)
		} else {
			children[parent] = append(children[parent], pid)
		}
	}
	var add func(pid, depth int)
	add = func(pid, depth int) {
		p, is := all[pid]
		if !is || len(out) == mostProcesses || depth > mostProcesses {
			return
		}
		out = append(out, model.Process{PID: pid, Depth: depth, Memory: p.Memory})
		below := children[pid]
		slices.Sort(below)
		for _, child := range below {
			if child != main {
				add(child, depth+1)
			}
		}
	}
	add(main, 0)
	slices.Sort(strays)
	for _, pid := range strays {
		add(pid, 0)
	}
	return out
}

// command is the command line of a process without secrets.
func command(root string, pid int) string {
	line, err := readSome(fmt.Sprintf("%s/%d/cmdline", root, pid), mostText)
	if err != nil || len(line) == 0 {
		return "?"
	}
	line = bytes.ReplaceAll(bytes.TrimRight(line, "\x00"), []byte{0}, []byte{' '})
	return string(new(redact.Masker).Hide(line, nil))
}

// environment makes lines of an environment: sorted, without secrets.
func environment(environ []byte) (out []string) {
	for kv := range bytes.SplitSeq(environ, []byte{0}) {
		name, value, is := strings.Cut(string(kv), "=")
		if !is {
			continue
		}
		shown := new(redact.Masker).Hide([]byte(redact.Value(name, value)), nil)
		out = append(out, name+"="+string(shown[:min(len(shown), mostText)]))
	}
	slices.Sort(out)
	return out
}

func readSome(path string, most int64) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return io.ReadAll(io.LimitReader(file, most))
}
