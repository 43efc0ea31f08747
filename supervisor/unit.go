package supervisor

import (
	"cmp"
	"os"
	"slices"

	"hinit/internal/proc"
)

// Unit is the definition of a service, as Register takes it.
type Unit struct {
	Name    string
	Profile string
	Kind    Kind
	Yields  bool // the agent can create such a service, so a profile of the same name takes precedence
	Policy  Policy
	Spec    proc.Spec // at each start the loop sets ID, Name and Files
	Log     string
	Needs   []string
	Group   string // name under which operators address several services; "" for none

	// Stdio, if not nil, is the list of the process's descriptors, from 0. Then the service has no log.
	Stdio []*os.File `reexec:"-"`
	// Std replaces /dev/null (descriptor 0) and the pipes of LogSink (1 and 2) where it is not nil. The owner of the files closes
	// them after the loop has forgotten the service. During a shutdown the loop closes descriptor 1 of a service that is down, so
	// the reader of that pipe sees its end.
	Std [3]*os.File `reexec:"-"`

	// NotifyFD is the descriptor on which the process writes a newline when it is ready, at most MaxNotifyFD; 0 for none. It
	// needs Policy.Announces.
	NotifyFD int

	// Checked services are ready only after a Checked event.
	Checked bool

	// Finish is the program of the finish command, for a service with Policy.Finish. It runs after each run, with the files,
	// environment, directory and user of the service. Its arguments are the same as in s6: exit code (256 after a signal), signal
	// or 0, name, PID. A missing program is ignored.
	Finish string

	// Pin is the open directory that Spec.Dir names by descriptor number, or nil. The unit keeps the directory open, so the
	// number can't mean another file.
	Pin *os.File
}

// MaxNotifyFD is the highest value of Unit.NotifyFD.
const MaxNotifyFD = 1023

// unit is a registered definition and the files of its service.
type unit struct {
	Unit     `reexec:"Unit"`
	LastSpec *proc.Spec  `reexec:"Ran"` // definition of the last run, if the next run has another one
	Stdio    bool        // the output goes to Files and not to a log; a descriptor that Files lacks is /dev/null
	Files    [3]*os.File // descriptors 0, 1 and 2; nil for /dev/null or the pipe of its log

	finish uint64   `reexec:"-"` // run of the finish command that started last
	view   *Service `reexec:"-"`
	index  int      `reexec:"-"` // index of its view in the snapshot
	dirty  bool     `reexec:"-"`
}

// setDefinition replaces the unit's definition. The running process keeps the old one until its next start.
func (u *unit) setDefinition(next Unit) {
	ran := u.Spec
	if u.LastSpec != nil {
		ran = *u.LastSpec
	}
	u.Unit, u.LastSpec = next, nil
	if !next.Spec.Same(ran) {
		u.LastSpec = &ran
	}
	u.Stdio, u.Files = next.Stdio != nil, next.Std
	if u.Stdio {
		copy(u.Files[:], next.Stdio)
	}
}

// openFiles returns the descriptors for a new process, and in own the files to close after the start.
func (l *Loop) openFiles(u *unit) (files, own []*os.File, err error) {
	files = slices.Clone(u.Files[:])
	if u.Stdio || files[1] != nil && files[2] != nil {
		return files, nil, nil
	}
	stdout, stderr, err := l.cfg.Logs.Pipes(u.Name)
	if err != nil {
		return nil, nil, err
	}
	files[1], files[2] = cmp.Or(files[1], stdout), cmp.Or(files[2], stderr)
	return files, []*os.File{stdout, stderr}, nil
}
