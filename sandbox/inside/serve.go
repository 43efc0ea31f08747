package inside

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/guard"
	"hinit/internal/proc"
	"hinit/internal/pty"
	"hinit/sandbox/archive"
	"hinit/sandbox/mux"
)

// scratchDirs are directories for the files of sessions. The socket also goes there if the container mounts no directory for
// it. The helper uses the first directory that is writable.
var scratchDirs = []string{"/tmp", "/dev/shm", "/var/tmp", "/run", "/"}

// ErrAlreadyServed means that another helper already serves in this container. [Serve] returns it.
var ErrAlreadyServed = errors.New("the container has this program already")

// server is the helper while it serves clients.
type server struct {
	id           string
	loop         *processLoop
	jobs         *jobs
	env          []string      // Environment of commands.
	startTicks   uint64        // Start time of this process, in clock ticks since boot.
	clients      atomic.Int32  // Number of connected clients.
	commandCount atomic.Uint64 // Number of commands so far, which makes the names of their files unique.
	sessionLock  sync.Mutex    // Serialises the start of a session, so that two commands don't start it twice.
}

// Serve serves clients until the process is killed. It sends id to each client in its Hello message, so that the client knows
// which container it has reached.
func Serve(id string) error {
	listener, err := listen()
	if err != nil {
		return err
	}
	l, err := newProcessLoop()
	if err != nil {
		return err
	}
	s := &server{id: id, loop: l, env: os.Environ()}
	s.startTicks, _ = proc.StartTicks(os.Getpid())
	s.jobs = &jobs{server: s}
	guard.Go("starting and reaping commands", l.serve)
	return mux.ServeEach(context.Background(), listener, s.serve)
}

// socketDirs returns the directories that may hold the socket, the best one first. The first directory is a mount. The helper
// creates the others when it needs them.
func socketDirs() []string {
	dirs := []string{mux.RunDir}
	for _, dir := range scratchDirs {
		dirs = append(dirs, filepath.Join(dir, fmt.Sprintf(".hinit-%d", os.Geteuid())))
	}
	return dirs
}

// listen makes the socket in the first directory where that works. It holds a lock on a file beside the socket for the life
// of this process, so that only one helper serves.
func listen() (listener *net.UnixListener, err error) {
	_, err = firstUsableDir(socketDirs(), func(dir string) (err error) {
		listener, err = listenIn(dir)
		return err
	})
	return listener, err
}

// firstUsableDir calls do with one directory after another until do succeeds. It returns that directory.
func firstUsableDir(dirs []string, do func(dir string) error) (string, error) {
	var reasons []error
	for _, dir := range dirs {
		err := error(nil)
		if dir != mux.RunDir {
			err = privateDir(dir)
		}
		if err == nil {
			err = do(dir)
		}
		if err == nil || errors.Is(err, ErrAlreadyServed) {
			return dir, err
		}
		reasons = append(reasons, err)
	}
	return "", fmt.Errorf("cannot find a place for sockets and sessions: %w", errors.Join(reasons...))
}

// privateDir creates a directory that only this user can enter. It accepts an existing directory if only this user can enter it.
func privateDir(dir string) error {
	err := unix.Mkdir(dir, 0o700)
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || int(st.Uid) != os.Geteuid() || st.Mode&0o077 != 0 {
		return fmt.Errorf("cannot use %s: it is not a directory that only user %d can use; remove it", dir, os.Geteuid())
	}
	return nil
}

func listenIn(dir string) (l *net.UnixListener, err error) {
	lock, err := unix.Open(filepath.Join(dir, "lock"), unix.O_CREAT|unix.O_RDWR|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot open the lock in %s: %w", dir, err)
	}
	defer func() {
		if err != nil {
			unix.Close(lock)
		}
	}()
	err = unix.Flock(lock, unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, ErrAlreadyServed
	}
	if err != nil {
		return nil, fmt.Errorf("cannot lock %s: %w", dir, err)
	}
	path := filepath.Join(dir, mux.Socket)
	_ = os.Remove(path)
	if l, err = net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"}); err != nil {
		return nil, err
	}
	if err = os.Chmod(path, 0o666); err != nil { // Every user may connect; mayRunCommands checks the user later.
		l.Close()
	}
	return l, err
}

// mayRunCommands reports whether a client may run commands as this user. A client with pid 0 is outside of the container's
// PID namespace. Such a client may run commands, because it has reached the socket through a directory that only its user on
// the host can open.
func mayRunCommands(conn net.Conn) bool {
	cred, err := proc.PeerCredentials(conn)
	return err == nil && (cred.Pid == 0 || cred.Uid == 0 || int(cred.Uid) == os.Geteuid())
}

// helloTimeout is how long a client may take to send its Hello.
const helloTimeout = 10 * time.Second

func (s *server) serve(nc net.Conn) {
	defer nc.Close()
	_ = nc.SetReadDeadline(time.Now().Add(helloTimeout))
	c, err := mux.Accept(nc, s.id)
	if err != nil || !mayRunCommands(nc) {
		return
	}
	_ = nc.SetReadDeadline(time.Time{})
	s.clients.Add(1)
	defer s.clients.Add(-1)
	mux.Serve(c, nil, s.acceptRequest)
}

// startTimeout is how long a server may take from its start until it listens.
const startTimeout = 10 * time.Second

// Attach connects in and out with the server in this container. If no server runs, it starts one: the program self with the
// arguments serve. It returns when the connection or the input ends.
func Attach(self string, serve []string, in io.Reader, out io.Writer) error {
	conn, err := dial()
	if err != nil {
		if err := startServer(self, serve); err != nil {
			return err
		}
		for limit := time.Now().Add(startTimeout); ; {
			if conn, err = dial(); err == nil {
				break
			}
			if time.Now().After(limit) {
				return fmt.Errorf("cannot reach the program that serves: %w", err)
			}
			<-time.After(2 * time.Millisecond)
		}
	}
	defer conn.Close()
	if pipe, ok := out.(*os.File); ok {
		// Use a larger pipe, which needs fewer writes; if the kernel refuses, keep the usual size.
		_, _ = unix.FcntlInt(pipe.Fd(), unix.F_SETPIPE_SZ, 1<<20)
	}
	ended := make(chan error, 2)
	guard.Go("copying to the program that serves", func() {
		_, err := io.Copy(conn, in)
		ended <- err
	})
	guard.Go("copying from the program that serves", func() {
		// The anonymous structs hide the methods with which io.Copy would use splice(2). splice would wake up the processes
		// at both ends every few kilobytes.
		_, err := io.CopyBuffer(struct{ io.Writer }{out}, struct{ io.Reader }{conn}, make([]byte, mux.MaxData))
		ended <- err
	})
	return <-ended
}

// startServer starts the server as a process that outlives this one.
func startServer(self string, argv []string) error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	_, err = proc.StartChild(proc.Spec{Path: self, Argv: append([]string{self}, argv...), Env: os.Environ(), Files: []*os.File{null, null, null}})
	return err
}

func dial() (net.Conn, error) {
	var reasons []error
	for _, dir := range socketDirs() {
		conn, err := (&net.Dialer{}).DialContext(context.Background(), "unix", filepath.Join(dir, mux.Socket))
		if err == nil {
			return conn, nil
		}
		reasons = append(reasons, err)
	}
	return nil, errors.Join(reasons...)
}

// channel executes one request of a client, in a goroutine. The connection's goroutine calls resize and cancel meanwhile.
type channel struct {
	*mux.Channel
	server  *server
	request mux.Open

	mu            sync.Mutex
	run           *run            // Run of the request; nil while no command runs.
	tty           *os.File        // Terminal of the command; nil: none.
	ctx           context.Context //nolint:containedctx // ends when the request is canceled; then its run ends, and no other begins
	cancelContext context.CancelFunc
}

func (s *server) acceptRequest(served *mux.Channel, open mux.Open) {
	ch := &channel{Channel: served, server: s, request: open}
	ch.ctx, ch.cancelContext = context.WithCancel(context.Background())
	ch.Resize, ch.Kill = ch.resize, ch.cancel
	guard.Go("serving a command", func() {
		end := ch.serve()
		ch.cancelContext()
		_ = ch.Finish(end) // Ignore the error: Finish fails only if the client is gone.
	})
}

func (ch *channel) resize(columns, rows uint16) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.tty != nil {
		pty.Resize(ch.tty, columns, rows)
	}
}

// cancel ends the channel's run, and prevents a later start of one.
func (ch *channel) cancel(grace time.Duration) {
	if grace < 0 {
		grace = milliseconds(ch.request.Grace)
	}
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.cancelContext()
	ch.Input.End(io.ErrUnexpectedEOF)
	if ch.run != nil {
		ch.server.loop.endTree(ch.run, grace, nil)
	}
	if ch.request.Op != mux.OpRun {
		ch.Output.End(nil)
	}
}

// runStarted stores the run that was started for the channel. If the request was canceled during the start, runStarted ends the
// run.
func (ch *channel) runStarted(r *run) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.run = r
	if ch.ctx.Err() != nil {
		ch.server.loop.endTree(r, milliseconds(ch.request.Grace), nil)
	}
}

func milliseconds(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

func refusedEnd(text string) *mux.End { return &mux.End{Fault: mux.Refused, Text: text} }

// serve executes the channel's request and returns how it ended.
func (ch *channel) serve() mux.End {
	s := ch.server
	if ch.request.Timeout < 0 || ch.request.Grace < 0 {
		return *refusedEnd("a negative time")
	}
	switch ch.request.Op {
	case mux.OpRun:
		return ch.runForeground()
	case mux.OpStart:
		return s.jobs.start(ch)
	case mux.OpJobs:
		return mux.End{Jobs: s.jobs.list(), Clients: int(s.clients.Load())}
	case mux.OpOutput:
		return s.jobs.withJob(ch, ch.sendOutput)
	case mux.OpKill:
		return s.jobs.withJob(ch, ch.kill)
	case mux.OpKillLeftovers:
		s.loop.runInLoop(func() { s.loop.killSession(ch.request.PID, s.startTicks) })
		return mux.End{}
	case mux.OpPutTree:
		return transferEnd(archive.Unpack(ch.Input, ch.request.Path, false))
	case mux.OpGetTree: // Like tar, begin the archive's names with the last element of the path.
		top := filepath.Clean(ch.request.Path)
		return transferEnd(archive.Pack(ch.Output, top, filepath.Base(top)))
	}
	return *refusedEnd("unknown operation " + string(ch.request.Op))
}

func transferEnd(err error) mux.End {
	if err != nil {
		return mux.End{Fault: mux.Refused, Code: 1, Text: err.Error()}
	}
	return mux.End{}
}
