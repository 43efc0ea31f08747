package inside

import (
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/guard"
	"hinit/internal/proc"
	"hinit/internal/pty"
	"hinit/sandbox/mux"
)

// A process that a command left behind may hold the command's output open. The helper then keeps reading until no data has come
// for leftoverOutputTime, and at most for maxLeftoverOutputTime. After that it drops the output, so that the process gets no
// error when it writes.
const (
	leftoverOutputTime    = 100 * time.Millisecond
	maxLeftoverOutputTime = 2 * time.Second
)

// runForeground runs a command whose streams are connected to the client, and returns how it ended.
func (ch *channel) runForeground() mux.End {
	spec, finish, fault := ch.server.prepare(ch)
	if fault != nil {
		return *fault
	}
	s, err := ch.openStreams(&spec)
	if err != nil {
		return notBegunEnd(err)
	}
	ended := make(chan *run, 1)
	r, pid, err := ch.server.loop.spawn(spec, milliseconds(ch.request.Timeout), milliseconds(ch.request.Grace), false, func(r *run) { ended <- r })
	closeAll(spec.Files)
	if err != nil {
		s.close()
		return notBegunEnd(err)
	}
	ch.runStarted(r)
	_ = ch.Send(mux.KindBegun, mux.EncodeNumber(uint32(pid))) // Ignore the error: the send fails only if the client is gone.
	s.startCopying(ch)
	<-ended
	s.awaitOutputSent()
	finish(&r.end)
	return r.end
}

func notBegunEnd(err error) mux.End {
	end := mux.End{Fault: mux.NotBegun, Code: 126, Text: err.Error()}
	if spawn := (*proc.SpawnError)(nil); errors.As(err, &spawn) {
		end.Code = spawn.ShellCode()
	}
	return end
}

// streams are the helper's ends of a command's standard streams: pipes, or a terminal.
type streams struct {
	stdin       *os.File // Standard input of the command; nil: no input.
	outputs     []output
	tty         *os.File       // Terminal, which is also stdin and the only output; nil: none.
	openOutputs sync.WaitGroup // Counts the outputs that are still open.
	ended       chan struct{}  // Closed when the command has ended.
}

type output struct {
	file   *os.File
	stream *mux.Stream
}

// close closes all streams. Call it if the command was not started.
func (s *streams) close() {
	_ = s.stdin.Close() // Ignore the error: closing a nil file fails without harm.
	for _, o := range s.outputs {
		_ = o.file.Close()
	}
}

// openStreams makes the pipes or the terminal of a command, and stores the command's ends in spec. The caller closes these ends
// after the command's start.
func (ch *channel) openStreams(spec *proc.Spec) (*streams, error) {
	s := &streams{ended: make(chan struct{})}
	if ch.request.TTY {
		master, slave, err := pty.Open()
		if err != nil {
			return nil, err
		}
		if ch.request.Columns > 0 && ch.request.Rows > 0 {
			pty.Resize(master, ch.request.Columns, ch.request.Rows)
		}
		s.tty, s.stdin, s.outputs = master, master, []output{{master, ch.Output}}
		spec.Files, spec.ControllingTTY = []*os.File{slave, slave, slave}, true
		ch.mu.Lock()
		ch.tty = master
		ch.mu.Unlock()
		return s, nil
	}
	spec.Files = make([]*os.File, 3)
	outlets := []*mux.Stream{1: ch.Output, 2: ch.Errors}
	for at, wanted := range []bool{ch.request.Input, true, ch.request.SplitErrors} {
		if !wanted {
			continue
		}
		own, child, err := pipe(at == 0)
		if err != nil {
			closeAll(spec.Files)
			s.close()
			return nil, err
		}
		spec.Files[at] = child
		if at == 0 {
			s.stdin = own
		} else {
			s.outputs = append(s.outputs, output{own, outlets[at]})
		}
	}
	if !ch.request.SplitErrors {
		spec.Files[2] = spec.Files[1]
	}
	return s, nil
}

// pipe makes a pipe. The helper's end is non-blocking; the command's end is blocking, as programs expect. If writes is true,
// the helper gets the writing end.
func pipe(writes bool) (own, child *os.File, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, os.NewSyscallError("pipe2", err)
	}
	if writes {
		fds[0], fds[1] = fds[1], fds[0]
	}
	if err := unix.SetNonblock(fds[0], true); err != nil {
		return nil, nil, os.NewSyscallError("fcntl", err)
	}
	// Use a larger pipe, which needs fewer writes; ignore the error if the user has too many large pipes.
	_, _ = unix.FcntlInt(uintptr(fds[0]), unix.F_SETPIPE_SZ, 1<<20)
	return os.NewFile(uintptr(fds[0]), "pipe"), os.NewFile(uintptr(fds[1]), "pipe"), nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close() // Ignore the error: a file may be nil or already closed.
	}
}

func (s *streams) startCopying(ch *channel) {
	if s.stdin != nil {
		guard.Go("feeding a command", func() {
			_ = ch.Input.CopyTo(s.stdin, func(error) {})
			if s.tty == nil {
				_ = s.stdin.Close()
				return
			}
			select {
			case <-s.ended:
			default:
				_, _ = s.tty.Write([]byte{4}) // Ctrl-D ends the input of a terminal.
			}
		})
	}
	for _, o := range s.outputs {
		s.openOutputs.Add(1)
		guard.Go("reading from a command", func() {
			o.forward(s.ended)
			s.openOutputs.Done()
			o.discard()
		})
	}
}

// forward sends the command's output to the client until all writers have closed it. over is closed when the command has
// ended. If a process outlives the command and keeps the output open, forward returns when no output has come for
// leftoverOutputTime, or after maxLeftoverOutputTime. It always sends all data that was in the pipe when the command ended.
func (o output) forward(over <-chan struct{}) {
	buf := make([]byte, mux.MaxData)
	var until time.Time // End of the wait for leftover processes; zero while the command runs.
	owed := 0
	for {
		n, err := o.file.Read(buf)
		if _, err := o.stream.Write(buf[:n]); err != nil {
			return
		}
		owed -= n
		select {
		case <-over:
			now := time.Now()
			if until.IsZero() {
				until, owed = now.Add(maxLeftoverOutputTime), bufferedBytes(o.file)
			}
			if owed <= 0 && now.After(until) {
				return
			}
			_ = o.file.SetReadDeadline(now.Add(leftoverOutputTime))
		default:
		}
		if err != nil {
			return
		}
	}
}

// bufferedBytes returns the number of unread bytes in a pipe or terminal.
func bufferedBytes(f *os.File) (n int) {
	if c, err := f.SyscallConn(); err == nil {
		_ = c.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
	}
	return n
}

// discard reads and drops output while a process still has it open. Otherwise SIGPIPE would kill a process that outlives the
// command.
func (o output) discard() {
	for {
		_ = o.file.SetReadDeadline(time.Time{})
		if _, err := io.Copy(io.Discard, o.file); !errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
	}
	_ = o.file.Close()
}

// awaitOutputSent waits until the command's output was sent. Call it when the command has ended.
func (s *streams) awaitOutputSent() {
	close(s.ended)
	for _, o := range s.outputs {
		_ = o.file.SetReadDeadline(time.Now().Add(leftoverOutputTime))
	}
	if s.stdin != nil && s.tty == nil {
		_ = s.stdin.Close()
	}
	s.openOutputs.Wait()
}
