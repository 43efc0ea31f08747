package scandir

import (
	"io/fs"

	"hinit/internal/fsutil"
	"hinit/internal/s6/formats"
)

// Files holds the scripts that hinit writes into a slot. hinit never runs them, but people can.
type Files struct {
	Run    string
	Finish string // the script finish; "" for none
	Log    string // the script log/run; "" for none
}

// With these modes, the agent's user can query and control a service with the tools of s6 (contract of s6, section 5.1).
const (
	eventMode   = fs.ModeDir | fs.ModeSetgid | fs.ModeSticky | 0o730
	controlMode = fs.ModeNamedPipe | 0o660
)

// definingFiles returns the files that a slot must have from the moment when its name appears.
func (f Files) definingFiles(down bool) []fsutil.Node {
	nodes := []fsutil.Node{{Name: formats.RunFile, Mode: 0o755, Data: []byte(f.Run)}}
	if down {
		nodes = append(nodes, fsutil.Node{Name: formats.DownFile, Mode: 0o644})
	}
	return nodes
}

// otherFiles returns the files of a slot that neither hinit nor the agent reads.
func (f Files) otherFiles() []fsutil.Node {
	nodes := []fsutil.Node{{Name: formats.TypeFile, Mode: 0o644, Data: []byte("longrun\n")}}
	if f.Finish != "" {
		nodes = append(nodes, fsutil.Node{Name: formats.FinishFile, Mode: 0o755, Data: []byte(f.Finish)})
	}
	nodes = append(nodes, pipeNodes("")...)
	if f.Log != "" {
		nodes = append(nodes,
			fsutil.Node{Name: formats.LogDir, Mode: fs.ModeDir | 0o755},
			fsutil.Node{Name: formats.LogDir + "/" + formats.RunFile, Mode: 0o755, Data: []byte(f.Log)})
		nodes = append(nodes, pipeNodes(formats.LogDir+"/")...)
	}
	return nodes
}

func pipeNodes(in string) []fsutil.Node {
	return []fsutil.Node{
		{Name: in + "event", Mode: eventMode},
		{Name: in + "supervise", Mode: fs.ModeDir | 0o755},
		{Name: in + "supervise/event", Mode: eventMode},
		{Name: in + "supervise/control", Mode: controlMode},
	}
}
