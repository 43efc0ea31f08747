// Package daemon is the server and the client of the sandbox service, which owns the sandboxes of a volume. Agents that may
// not use the engine themselves use this service.
//
// [Server] listens on a unix socket. Each connection carries one command line, and the kernel tells which user has connected.
// The server passes the command line to a [Handler], which must give each caller access only to its own containers. Streams,
// window sizes and cancellation are frames of package mux. When a connection ends, its command is killed.
//
// [Dial] and [Conn.Run] are the client. The server keeps no state that must survive a restart: it finds containers by their
// labels.
//
// A Server owns one goroutine for each connection, and two more while the connection's command runs. A Conn owns the
// goroutines of one Run.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net"
	"os"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/samber/lo"
	"golang.org/x/sys/unix"

	"hinit/internal/pause"
	"hinit/internal/proc"
	"hinit/sandbox"
	"hinit/sandbox/mux"
)

// Peer is the client at the other end of a connection, as the kernel reports it (SO_PEERCRED).
type Peer struct {
	PID      int
	UID, GID uint32
	Conn     net.Conn
}

// Request is one command line, with the parts of the caller's environment that the command needs.
type Request struct {
	Docker bool              `json:"docker,omitempty"` // True for a docker command line; false for one of hinit sandbox.
	Args   []string          `json:"args"`
	Home   string            `json:"home,omitempty"`  // HERMES_HOME of the caller, which shows its profile
	Env    map[string]string `json:"env,omitempty"`   // values of variables that the command line names without a value
	Stdin  bool              `json:"stdin,omitempty"` // Whether the client sends standard input.
	// Name of the process that runs docker commands, usually the agent. The service finds out the name itself if it can see
	// the caller's processes.
	Parent string               `json:"parent,omitempty"`
	TTY    bool                 `json:"tty,omitempty"` // Whether standard input is a terminal of size Size.
	Size   sandbox.TerminalSize `json:"size,omitzero"`
}

// Streams are the standard streams of a request, on both sides.
type Streams = sandbox.Streams

// Handler executes a request and returns the exit code. ctx ends when the caller has closed its connection.
type Handler func(ctx context.Context, from Peer, req Request, streams Streams) int

// Server serves the connections of clients. Set the exported fields before [Server.Serve].
type Server struct {
	Handle Handler
	// CheckPeer returns an error if a caller may not use the service, and nil if it may.
	CheckPeer func(Peer) error
	// Panicked is called with the value and the stack of a panic in the goroutine of a connection or request. It must not be
	// nil.
	Panicked func(fault any, stack []byte)

	mu               sync.Mutex
	waitingConns     map[uint32][]net.Conn // Connections that have not sent their request yet, by user, oldest first.
	longRequestBytes map[uint32]int        // Bytes of long requests in memory, by user.
	commands         map[uint32]int        // Number of running commands, by user.
}

// Limits for one user. A request of up to maxShortRequest bytes is not counted; the longer ones may have maxLongRequestBytes
// together. The service also buffers output that a caller does not read, up to a limit for each command. So one user can make it
// use at most 400 MB.
const (
	maxShortRequest     = 16 << 10
	maxLongRequestBytes = 16 << 20
	maxCommands         = 256
)

// addCount adds n to the number of a user in the map of. If the sum would exceed the limit most, it adds nothing and returns
// false.
func (s *Server) addCount(of map[uint32]int, uid uint32, n, limit int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n > 0 && of[uid]+n > limit {
		return false
	}
	if of[uid] += n; of[uid] == 0 {
		delete(of, uid)
	}
	return true
}

// codeNotAllowed is the exit code of a caller that may not use the service.
const codeNotAllowed = 5

// requestTimeout is how long a connection may take to send its request before it is closed.
const requestTimeout = 5 * time.Second

// Serve serves connections until ctx ends. Then it closes them, and returns when their goroutines have ended.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	s.waitingConns, s.longRequestBytes, s.commands = map[uint32][]net.Conn{}, map[uint32]int{}, map[uint32]int{}
	return mux.ServeEach(ctx, l, func(c net.Conn) {
		defer s.catchPanic()
		s.serve(ctx, c)
	})
}

// maxWaitingConns limits one user's connections that have not sent their request. When a user makes more, the oldest one is
// closed, so that a user can't use up all descriptors.
const maxWaitingConns = 64

// addWaitingConn counts a connection that has not sent its request, until the caller calls done.
func (s *Server) addWaitingConn(uid uint32, c net.Conn) (done func()) {
	s.mu.Lock()
	all := s.waitingConns[uid]
	if len(all) >= maxWaitingConns {
		// This also ends the goroutine of the oldest connection. Close it only after the mutex is unlocked. The close may
		// have to wait for a read, and this read may be closing a socket that the client has sent.
		defer all[0].Close()
		all = all[1:]
	}
	s.waitingConns[uid] = append(all, c)
	s.mu.Unlock()
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.waitingConns[uid] = slices.DeleteFunc(s.waitingConns[uid], func(other net.Conn) bool { return other == c }); len(s.waitingConns[uid]) == 0 {
			delete(s.waitingConns, uid)
		}
	}
}

func (s *Server) serve(ctx context.Context, nc net.Conn) {
	defer nc.Close()
	cred, err := proc.PeerCredentials(nc)
	if err != nil {
		return
	}
	from := Peer{PID: int(cred.Pid), UID: cred.Uid, GID: cred.Gid, Conn: nc}
	done := s.addWaitingConn(from.UID, nc)
	defer done()
	_ = nc.SetReadDeadline(time.Now().Add(requestTimeout)) // This can't fail on an open socket.
	c, err := mux.Accept(nc, "")
	if err != nil {
		return
	}
	kept := 0
	defer func() { s.addCount(s.longRequestBytes, from.UID, -kept, 0) }()
	keep := func(n int) error {
		switch {
		case n <= maxShortRequest:
			return nil
		case !s.addCount(s.longRequestBytes, from.UID, n, maxLongRequestBytes):
			return errors.New("cannot use the sandboxes: too much is being asked already; try again when a command has ended")
		}
		kept += n
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var answering sync.WaitGroup
	started := false
	defer func() {
		answering.Wait()
		if started {
			s.addCount(s.commands, from.UID, -1, 0)
		}
	}()
	mux.Serve(c, keep, func(ch *mux.Channel, req Request) {
		streams := requestStreams(ch, req, cancel)
		if started { // A connection carries only one request, so end the connection.
			cancel()
			return
		}
		if err := s.CheckPeer(from); err != nil {
			ch.Refuse(codeNotAllowed, fmt.Errorf("cannot use the sandboxes: %w", err))
			return
		}
		most := lo.Ternary(from.UID == 0, math.MaxInt, maxCommands) // An operator must always be able to use the service.
		if !s.addCount(s.commands, from.UID, 1, most) {
			ch.Refuse(1, errors.New("cannot use the sandboxes: too many commands run already; try again when one has ended"))
			return
		}
		started = true
		done()
		_ = nc.SetReadDeadline(time.Time{}) // This can't fail on an open socket.
		answering.Go(func() {
			defer s.catchPanic()
			defer nc.Close()                                // Closing the connection ends the goroutine that reads from it.
			_ = ch.Send(mux.KindBegun, mux.EncodeNumber(0)) // Ignore the error: the send fails only if the caller is gone.
			_ = ch.Finish(s.handle(ctx, from, req, streams))
		})
	})
}

// handle calls the handler. If the handler panics, only this request fails.
func (s *Server) handle(ctx context.Context, from Peer, req Request, streams Streams) (end mux.End) {
	defer s.catchPanic()
	end = mux.End{Code: 1, Fault: mux.Refused, Text: "cannot finish the request: the sandbox service has a fault; its log has the details"}
	return mux.End{Code: s.Handle(ctx, from, req, streams)}
}

// catchPanic reports a panic and stops it, so that the service keeps serving other users; it must be deferred. It does not
// protect goroutines that package guard starts. They still end the service, because a sandbox would wait for them for ever.
func (s *Server) catchPanic() {
	if fault := recover(); fault != nil {
		s.Panicked(fault, debug.Stack())
	}
}

// requestStreams returns the streams of a request. gone is called when the client has closed the connection.
func requestStreams(ch *mux.Channel, req Request, gone func()) Streams {
	resizes := make(chan sandbox.TerminalSize, 1)
	ch.Kill = func(time.Duration) { gone() }
	ch.Resize = sandbox.KeepNewestSize(resizes)
	s := Streams{Out: ch.Output, Err: ch.Errors, Resizes: resizes}
	if req.Stdin {
		s.In = ch.Input
	}
	return s
}

// ErrNoService means that no service has ever listened on the socket. The errors of [Dial] wrap it.
var ErrNoService = errors.New("there is no service of sandboxes")

// ErrServiceLost means that the service ended while the command ran. The errors of [Conn.Run] wrap it.
var ErrServiceLost = errors.New("the service of sandboxes went away while the command ran")

// dialTimeout is how long Dial tries to reach the service, with a pause of dialRetryPause between two tries. It is long enough
// for hinit to restart the service. It is shorter than the time that the agent gives `docker version`.
const (
	dialTimeout    = 4 * time.Second
	dialRetryPause = 50 * time.Millisecond
)

// Conn is a connection to the service, for one request.
type Conn struct{ conn net.Conn }

// Dial connects to the service. It waits while the service is restarting. It refuses a socket whose server runs neither as root
// nor as this user, because any other user may have made it.
func Dial(ctx context.Context, socket string) (*Conn, error) {
	if _, err := os.Stat(socket); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("cannot reach %s: %w", socket, ErrNoService)
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	for {
		c, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
		if err == nil {
			owner, err := proc.PeerCredentials(c)
			if err == nil && owner.Uid != 0 && owner.Uid != uint32(os.Geteuid()) {
				err = fmt.Errorf("cannot trust the service on %s: it is neither root's nor yours", socket)
			}
			if err != nil {
				_ = c.Close() // Ignore the error, because no request was sent.
				return nil, err
			}
			return &Conn{c}, nil
		}
		// EAGAIN: the queue of the socket is full.
		if !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, unix.EAGAIN) && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("cannot reach the service of sandboxes: %w", err)
		}
		if !pause.For(ctx, dialRetryPause) {
			return nil, fmt.Errorf("cannot reach the service of sandboxes: %w; see: hinit status sandbox", err)
		}
	}
}

// Run sends a request and returns the exit code of its command. The command is killed when ctx ends or this process dies. A read
// of local.In may still be in progress after Run has returned.
func (c *Conn) Run(ctx context.Context, req Request, local Streams) (int, error) {
	defer c.conn.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() { _ = c.conn.Close() })() // Closing the connection ends all goroutines that use it.
	service, err := mux.NewClient(c.conn, "")
	if err != nil {
		return 0, fmt.Errorf("cannot ask the service of sandboxes: %w", err)
	}
	st, err := service.Open(req)
	if err != nil {
		return 0, fmt.Errorf("cannot ask the service of sandboxes: %w", err)
	}
	if req.Stdin {
		st.FeedInput(local.In, func(error) bool { return true }) // A read error ends the command's input.
	}
	written := st.CopyOutputs(local.Out, local.Err, cancel)
	st.ForwardSizes(local.Resizes)
	<-st.Done()
	_ = written() // Ignore the error: it has already cancelled the command.
	end, err := st.End()
	switch {
	case ctx.Err() != nil:
		return 0, context.Cause(ctx)
	case err == nil && end.Fault != mux.NoFault:
		fmt.Fprintln(local.Err, end.Text)
	case err != nil:
		select {
		case <-st.Begun():
		default:
			return 0, fmt.Errorf("cannot ask the service of sandboxes: too many ask at this moment, or it has just ended (%w); the command has not begun: try again", err)
		}
		return 0, fmt.Errorf("%w (%w); it was not run again, because it may have done its work", ErrServiceLost, err)
	}
	return end.Code, nil
}
