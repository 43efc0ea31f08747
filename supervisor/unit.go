package supervisor

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"hinit/internal/guard"
	"hinit/internal/proc"
)

// Unit is the definition of a service, as it is passed to Register.
type Unit struct {
	Name            string
	Profile         string
	Kind            Kind
	YieldsToProfile bool `reexec:"Yields"` // an agent may have created this service, so a profile of the same name takes precedence
	Policy          Policy
	Spec            proc.Spec // at each start the loop sets ID, Name and Files
	Log             string
	Needs           []string
	Group           string // name under which operators address several services; "" for none

	// Stdio, if not nil, lists the descriptors of the process, starting with descriptor 0. Such a service has no log.
	Stdio []*os.File `reexec:"-"`
	// StdOverrides replaces the default descriptors where it is not nil: /dev/null for descriptor 0, and the pipes of LogSink for 1
	// and 2. The owner of these files closes them after the loop has forgotten the service. During a shutdown the loop closes
	// StdOverrides[1] when the service is down, so that the reader of that pipe sees the end of the input.
	StdOverrides [3]*os.File `reexec:"-"`

	// NotifyFD is the descriptor on which the process writes a newline when it is ready, at most MaxNotifyFD; 0 for none. It is
	// used together with Policy.ReportsReadiness.
	NotifyFD int

	// HasReadinessChecks is true if the service has readiness checks. It is then ready only after a ChecksReported event.
	HasReadinessChecks bool `reexec:"Checked"`

	// Finish is the program of the finish command, for a service with Policy.Finish. It runs after each run, with the
	// descriptors, environment, directory and user of the service. Its arguments are the same as in s6: exit code (256
	// after a signal), signal or 0, name, PID. A program that does not exist is ignored.
	Finish string

	// OpenDir is the open directory to which Spec.Dir refers by descriptor number, or nil. While the unit keeps it open, that number
	// can't refer to another file.
	OpenDir *os.File `reexec:"Pin"`
}

// MaxNotifyFD is the highest value of Unit.NotifyFD.
const MaxNotifyFD = 1023

// unit is a registered definition, together with the descriptors of its service.
type unit struct {
	*Unit    `reexec:"Unit"` // never modified: the machine keeps a pointer to its Policy
	LastSpec *proc.Spec      `reexec:"Ran"` // definition of the last run, if the next run has a different one
	Stdio    bool            // the output goes to Files and not to a log; descriptors that Files lacks are /dev/null
	Files    [3]*os.File     // descriptors 0, 1 and 2; nil stands for /dev/null or the pipe of the log

	lastFinishRun uint64   `reexec:"-"` // run number of the finish command that was started last
	view          *Service `reexec:"-"`
	index         int      `reexec:"-"` // index of the unit's view in the snapshot
	dirty         bool     `reexec:"-"`
}

// setDefinition replaces the unit's definition. The running process keeps the old one until its next start.
func (u *unit) setDefinition(next *Unit) {
	ran := cmp.Or(u.LastSpec, &u.Spec)
	u.Unit, u.LastSpec = next, nil
	if !next.Spec.Same(*ran) {
		u.LastSpec = ran
	}
	u.Stdio, u.Files = next.Stdio != nil, next.StdOverrides
	if u.Stdio {
		copy(u.Files[:], next.Stdio)
	}
}

// openFiles returns the descriptors for a new process. The result own lists the files that the caller must close after the start.
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

// readinessPipe is the pipe on which a run writes a newline to say that it is ready. A goroutine waits for data, and the loop reads
// them. So what the loop has not handled stays in the pipe, and a re-execution loses no newline.
type readinessPipe struct {
	fd    int // descriptor number of the writing end in the new process
	r, w  *os.File
	taken int // number of bytes that were read
}

func newReadinessPipe(fd int) (*readinessPipe, error) {
	if fd < 1 || fd > MaxNotifyFD {
		return nil, fmt.Errorf("cannot listen for readiness on descriptor %d: it must be 1 to %d", fd, MaxNotifyFD)
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("cannot make the pipe for readiness: %w", err)
	}
	return &readinessPipe{fd: fd, r: r, w: w}, nil
}

// addTo extends the list files so that the write end of the pipe becomes descriptor fd of the new process. The descriptors that
// addTo adds below fd are closed in the new process.
func (n *readinessPipe) addTo(files []*os.File) []*os.File {
	if n == nil {
		return files
	}
	all := make([]*os.File, max(len(files), n.fd+1))
	copy(all, files)
	all[n.fd] = n.w
	return all
}

// closeWriter closes hinit's copy of the writing end. Call closeWriter after the process was started.
func (n *readinessPipe) closeWriter() { _ = n.w.Close() }

// close closes the reading end, which ends the goroutine.
func (n *readinessPipe) close() {
	if n != nil {
		_ = n.r.Close()
	}
}

// maxReadinessText is the maximum size of the text before the newline that says "ready". A process that writes more without one
// could keep hinit busy for ever.
const maxReadinessText = 4096

// awaitData waits until the pipe has data, or has no writer any more. It returns false if this process has closed the pipe.
func (n *readinessPipe) awaitData() bool {
	raw, err := n.r.SyscallConn()
	return err == nil && raw.Read(func(fd uintptr) bool {
		has, _ := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return has > 0
	}) == nil
}

// watchReadiness starts the goroutine that waits for data in the readiness pipe of a run.
func (l *Loop) watchReadiness(run uint64, n *readinessPipe) {
	l.readinessPipes[run] = n
	guard.Go("waiting for readiness", func() {
		for n.awaitData() && l.sendRequest(context.Background(), request{call: func() { l.readReadiness(run) }}) == nil {
		}
	})
}

// readReadiness reads the readiness pipe of a run without waiting, and tells the machine of a newline. It ignores the text before
// the newline. After the newline, too much text, or the end of the data, it closes the pipe.
func (l *Loop) readReadiness(run uint64) {
	n := l.readinessPipes[run]
	if n == nil {
		return
	}
	data, size, err := make([]byte, maxReadinessText), 0, os.ErrClosed
	if raw, closed := n.r.SyscallConn(); closed == nil {
		_ = raw.Control(func(fd uintptr) { size, err = unix.Read(int(fd), data) })
	}
	n.taken += max(size, 0)
	newline := bytes.IndexByte(data[:max(size, 0)], '\n') >= 0
	if newline {
		l.step(Ready{l.runs[run], run, true, ""})
	}
	if newline || n.taken >= maxReadinessText || size <= 0 && !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
		delete(l.readinessPipes, run)
		n.close()
	}
}
