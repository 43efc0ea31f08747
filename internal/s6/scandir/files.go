package scandir

import (
	"io/fs"

	"hinit/internal/fsutil"
	"hinit/internal/s6"
)

// Files are the scripts of a slot that hinit runs by itself. They are never run by it: they say to people what it does, and
// do the same when somebody runs them by hand.
type Files struct {
	Run    string
	Finish string // "" for none
	Log    string // log/run, "" for none
}

// Modes that let the agent's user query and control a service with the tools of s6 (contract of s6, section 5.1).
const (
	eventMode   = fs.ModeDir | fs.ModeSetgid | fs.ModeSticky | 0o730
	controlMode = fs.ModeNamedPipe | 0o660
)

// nodes is the whole slot.
func (f Files) nodes(down bool) []fsutil.Node {
	nodes := []fsutil.Node{
		{Name: s6.TypeFile, Mode: 0o644, Data: []byte("longrun\n")},
		{Name: s6.RunFile, Mode: 0o755, Data: []byte(f.Run)},
	}
	if f.Finish != "" {
		nodes = append(nodes, fsutil.Node{Name: s6.FinishFile, Mode: 0o755, Data: []byte(f.Finish)})
	}
	if down {
		nodes = append(nodes, fsutil.Node{Name: s6.DownFile, Mode: 0o644})
	}
	nodes = append(nodes, skeleton("")...)
	if f.Log != "" {
		nodes = append(nodes,
			fsutil.Node{Name: s6.LogDir, Mode: fs.ModeDir | 0o755},
			fsutil.Node{Name: s6.LogDir + "/" + s6.RunFile, Mode: 0o755, Data: []byte(f.Log)})
		nodes = append(nodes, skeleton(s6.LogDir+"/")...)
	}
	return nodes
}

// skeleton is what the tools of s6 look for in every service directory.
func skeleton(in string) []fsutil.Node {
	return []fsutil.Node{
		{Name: in + "event", Mode: eventMode},
		{Name: in + "supervise", Mode: fs.ModeDir | 0o755},
		{Name: in + "supervise/event", Mode: eventMode},
		{Name: in + "supervise/control", Mode: controlMode},
	}
}
