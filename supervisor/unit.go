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

// Unit is the definition of a service. [Loop.Register] passes it to the supervisor.
type Unit struct {
	Name            string
	Profile         string
	Kind            Kind
	YieldsToProfile bool `reexec:"Yields"` // an agent may have created this service; a profile of the same name replaces it
	Policy          Policy
	Spec            proc.Spec // how to start the process; the loop sets ID, Name and Files at each start
	LogFile         string    `reexec:"Log"`
	Needs           []string
	Group           string // name under which operators address several services; "" for none

	// Stdio lists the descriptors of the process, from 0 on. If it is not nil, the output of the service goes to no log.
	Stdio []*os.File `reexec:"-"`
	// StdOverrides are files for descriptors 0, 1 and 2 of the process. If an entry is nil, the process gets /dev/null for
	// descriptor 0, and the pipe of LogSink for descriptors 1 and 2. The owner of these files closes them after the loop has
	// forgotten the service. During a shutdown the loop closes StdOverrides[1] when the service is down, so that the reader of
	// that pipe sees the end of its input.
	StdOverrides [3]*os.File `reexec:"-"`

	// NotifyFD is the descriptor to which the process writes a newline when it is ready, at most MaxNotifyFD; 0 for none. It
	// needs Policy.ReportsReadiness.
	NotifyFD int

	// HasReadinessChecks means that the service has readiness checks. It is then ready only after a ChecksReported event.
	HasReadinessChecks bool `reexec:"Checked"`

	// FinishProgram runs after each run, if Policy.RunsFinish is set. It gets the descriptors, environment, directory and user
	// of the service, and the arguments of s6: exit code (256 after a signal), signal or 0, name, PID. A missing program is
	// ignored.
	FinishProgram string `reexec:"Finish"`

	// OpenDir is an open directory, or nil. The unit needs it if Spec.Dir names the directory by descriptor number
	// (/proc/self/fd/N): while it is open, the number can't refer to another file.
	OpenDir *os.File `reexec:"Pin"`
}

// MaxNotifyFD is the highest value of Unit.NotifyFD.
const MaxNotifyFD = 1023

// unit is the loop's record of a service: its definition, the descriptors for its next start, and its entry in the snapshot.
type unit struct {
	*Unit    `reexec:"Unit"` // a definition is never modified, because the machine keeps a pointer to its Policy
	LastSpec *proc.Spec      `reexec:"Ran"` // Spec of the last run, if the definition has changed since that run
	Stdio    bool            // Files has all descriptors (nil for /dev/null), and there is no log
	Files    [3]*os.File     // descriptors 0, 1 and 2; nil stands for /dev/null or the pipe of the log

	lastFinishRun uint64   `reexec:"-"`
	view          *Service `reexec:"-"`
	index         int      `reexec:"-"`
	viewOutdated  bool     `reexec:"-"`
}

// setDefinition replaces the definition of the unit. The running process keeps the old definition until its next start.
func (u *unit) setDefinition(next *Unit) {
	ran := cmp.Or(u.LastSpec, &u.Spec)
	u.Unit, u.LastSpec = next, nil
	if !next.Spec.StartsTheSame(*ran) {
		u.LastSpec = ran
	}
	u.Stdio, u.Files = next.Stdio != nil, next.StdOverrides
	if u.Stdio {
		copy(u.Files[:], next.Stdio)
	}
}

// openFiles returns descriptors 0, 1 and 2 for a new process. After the start, the caller must close the files in own.
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

// readinessPipe is the pipe on which a run writes a newline when it is ready. A goroutine waits for data, but only the loop
// reads them. Unread data stay in the pipe, so a re-execution loses no newline.
type readinessPipe struct {
	fd        int
	r, w      *os.File
	bytesRead int
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

// addTo adds the write end of the pipe to the files of a new process, as descriptor fd. Missing descriptors below fd stay
// closed in the process.
func (n *readinessPipe) addTo(files []*os.File) []*os.File {
	if n == nil {
		return files
	}
	all := make([]*os.File, max(len(files), n.fd+1))
	copy(all, files)
	all[n.fd] = n.w
	return all
}

// closeWriter closes hinit's copy of the write end. Without this call after the start of the process, the pipe never ends.
func (n *readinessPipe) closeWriter() { _ = n.w.Close() }

func (n *readinessPipe) close() {
	if n != nil {
		_ = n.r.Close()
	}
}

// maxReadinessText is the maximum number of bytes before the newline. A process that writes endlessly would otherwise keep the
// loop busy.
const maxReadinessText = 4096

// awaitData blocks until the pipe has data or has lost its last writer. It returns false if hinit has closed the read end.
func (n *readinessPipe) awaitData() bool {
	raw, err := n.r.SyscallConn()
	return err == nil && raw.Read(func(fd uintptr) bool {
		has, _ := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return has > 0
	}) == nil
}

// watchReadiness starts a goroutine that waits for data in the readiness pipe of a run and lets the loop read them.
func (l *Loop) watchReadiness(run uint64, n *readinessPipe) {
	l.readinessPipes[run] = n
	guard.Go("waiting for readiness", func() {
		for n.awaitData() && l.sendRequest(context.Background(), request{call: func() { l.readReadiness(run) }}) == nil {
		}
	})
}

// readReadiness reads the readiness pipe of a run without waiting. A newline makes the run ready; earlier text is ignored. The
// pipe is closed after the newline, too much text, or the end of the data.
func (l *Loop) readReadiness(run uint64) {
	n := l.readinessPipes[run]
	if n == nil {
		return
	}
	data, size, err := make([]byte, maxReadinessText), 0, os.ErrClosed
	if raw, closed := n.r.SyscallConn(); closed == nil {
		_ = raw.Control(func(fd uintptr) { size, err = unix.Read(int(fd), data) })
	}
	n.bytesRead += max(size, 0)
	newline := bytes.IndexByte(data[:max(size, 0)], '\n') >= 0
	if newline {
		l.step(Ready{l.runs[run], run, true, ""})
	}
	if newline || n.bytesRead >= maxReadinessText || size <= 0 && !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
		delete(l.readinessPipes, run)
		n.close()
	}
}
