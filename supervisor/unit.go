package supervisor

import (
	"cmp"
	"os"
	"slices"

	"hinit/internal/proc"
)

// Unit is a service as the loop runs it.
type Unit struct {
	Name    string
	Profile string
	Kind    Kind
	Yields  bool // a profile of its name goes before it, because the agent can make such a service
	Policy  Policy
	Spec    proc.Spec // ID, Name and Files are filled in at each start
	Log     string
	Needs   []string
	Group   string // by which operators name it with others; "" for none

	// Stdio, when it is not nil, is what the process gets as its descriptors 0, 1, 2, ...; nothing of it goes to the log.
	Stdio []*os.File `reexec:"-"`
	// Std takes the place of /dev/null (descriptor 0) and of the LogSink's pipes (1 and 2) where it is not nil. Their creator
	// closes the files once the service is dropped. At the end of the container the loop closes descriptor 1 of a service that is
	// down, so the reader of the pipe comes to its end.
	Std [3]*os.File `reexec:"-"`

	// NotifyFD, when it is not 0, is the descriptor on which the process writes a newline when it is ready, at most MaxNotifyFD. It
	// needs Policy.Announces.
	NotifyFD int

	// Checked says that the service counts as ready only when a Checked event says so.
	Checked bool

	// Finish is the program that runs after each run of a service with Policy.Finish, with its files, environment, directory and
	// user. It has s6's arguments: exit code (256 after a signal), signal or 0, name, pid. A missing one counts as one that did
	// nothing.
	Finish string

	// Pin is what Spec.Dir names by its descriptor: the unit keeps it open, so that the number means nothing else. It may be nil.
	Pin *os.File
}

// MaxNotifyFD is the highest descriptor a service can be given to say on that it is ready.
const MaxNotifyFD = 1023

// unit is a service as it was registered, and what there is of it.
type unit struct {
	Unit  `reexec:"Unit"`
	Ran   *proc.Spec  // what the last run was started as, where Spec says something else by now
	Stdio bool        // it has no log: what Files does not have is /dev/null
	Files [3]*os.File // descriptors 0, 1 and 2, where they are not /dev/null and the pipes of its log

	finish uint64   `reexec:"-"` // run of the finish command last started
	view   *Service `reexec:"-"`
	place  int      `reexec:"-"` // of the view in the snapshot
	dirty  bool     `reexec:"-"`
}

// define makes a registered unit the definition from the next start on.
func (u *unit) define(next Unit) {
	ran := u.Spec
	if u.Ran != nil {
		ran = *u.Ran
	}
	u.Unit, u.Ran = next, nil
	if !next.Spec.Same(ran) {
		u.Ran = &ran
	}
	u.Stdio, u.Files = next.Stdio != nil, next.Std
	if u.Stdio {
		copy(u.Files[:], next.Stdio)
	}
}

// files returns a process's descriptors, and the ones to close after the start.
func (l *Loop) files(u *unit) (files, own []*os.File, err error) {
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
