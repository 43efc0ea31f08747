package feed

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"hinit/internal/proc"
	"hinit/internal/redact"
	"hinit/internal/top/model"
	"hinit/internal/usage"
)

// These constants limit the details of a service.
const (
	mostProcesses = 64
	mostText      = 4 << 10
)

// Inside reads the processes of a service and its environment from /proc. pid is the main process. It leaves out the secrets that it
// recognises.
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
	owners := roots.Owners(all)
	list := all.Tree(pid, func(of int) bool { return owners[of] == pid })
	for _, p := range list[:min(len(list), mostProcesses)] {
		command := usage.Command(root, p.PID)
		out.Processes = append(out.Processes, model.Process{PID: p.PID, Depth: p.Depth, Memory: p.Memory, Command: command[:min(len(command), mostText)]})
	}
	environ, err := usage.ReadHead(fmt.Sprintf("%s/%d/environ", root, pid))
	if err != nil {
		out.Missing = "its environment may not be read by this user"
	}
	out.Environment = environment(environ)
	return out
}

// environment returns the variables of an environment as sorted lines, without secrets.
func environment(environ []byte) (out []string) {
	for kv := range bytes.SplitSeq(environ, []byte{0}) {
		name, value, is := strings.Cut(string(kv), "=")
		if !is {
			continue
		}
		shown := redact.Text(redact.Value(name, value))
		out = append(out, name+"="+shown[:min(len(shown), mostText)])
	}
	slices.Sort(out)
	return out
}
