package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/guard"
	"hinit/sandbox"
)

// Peer is who has connected, by the kernel's word.
type Peer struct {
	PID      int
	UID, GID uint32
}

// Streams are those of a request.
type Streams struct {
	In       io.Reader // nil when none is sent
	Out, Err io.Writer
	Resizes  <-chan sandbox.Size
	Signals  <-chan sandbox.SignalNo
}

// Handler answers a request and returns the exit code of its command. The context ends when the caller has gone.
type Handler func(ctx context.Context, from Peer, req Request, streams Streams) int

// Server answers connections.
type Server struct {
	Handle Handler
	// Allow says whether a user may ask at all; nil allows everybody.
	Allow func(Peer) bool
	// Most is how many requests may run at the same time, and MostOne how many of one user, root excepted.
	Most, MostOne int

	mu      sync.Mutex
	running map[uint32]int
	total   int
	long    map[uint32]int // bytes of long requests
}

// What a request may have without being counted, and how many bytes the longer ones of one user may have together.
const (
	shortRequest = 16 << 10
	longRequests = 16 << 20
)

// keep counts the bytes of a long request until release, unless its user has too many.
func (s *Server) keep(uid uint32, n int) (release func(), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n <= shortRequest {
		return func() {}, true
	}
	if s.long == nil {
		s.long = map[uint32]int{}
	}
	if s.long[uid]+n > longRequests {
		return nil, false
	}
	s.long[uid] += n
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.long[uid] -= n; s.long[uid] == 0 {
			delete(s.long, uid)
		}
	}, true
}

// What a connection gets that is not served.
const (
	codeNotAllowed = 5
	codeBusy       = 1
)

// requestTime is how long a connection may take to say what it wants.
const requestTime = 5 * time.Second

// Serve answers until the context ends. Then it lets go of every caller and returns when all are gone.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	stop := context.AfterFunc(ctx, func() { _ = l.Close() }) // ends Accept
	defer stop()
	var all sync.WaitGroup
	defer all.Wait()
	for {
		c, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ECONNABORTED):
			select {
			case <-time.After(50 * time.Millisecond): // until somebody has closed one
			case <-ctx.Done():
			}
		case err != nil:
			return fmt.Errorf("cannot accept connections: %w", err)
		default:
			all.Go(func() {
				defer guard.Catch("a request for a sandbox")
				s.serve(ctx, c)
			})
		}
	}
}

// enter counts a request, unless there are too many.
func (s *Server) enter(uid uint32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running == nil {
		s.running = map[uint32]int{}
	}
	if uid != 0 && (s.total >= s.Most || s.running[uid] >= s.MostOne) {
		return false
	}
	s.total++
	s.running[uid]++
	return true
}

func (s *Server) leave(uid uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total--
	if s.running[uid]--; s.running[uid] == 0 {
		delete(s.running, uid)
	}
}

func (s *Server) serve(ctx context.Context, c net.Conn) {
	defer c.Close()
	f := &frames{r: c, w: c}
	from, err := peerOf(c)
	if err != nil {
		return
	}
	exit := func(code int, why string) {
		if why != "" {
			_, _ = stream{f, kindStderr}.Write([]byte(why + "\n")) // whoever has gone needs no answer
		}
		_ = f.writeJSON(kindExit, code) // the same
	}
	if s.Allow != nil && !s.Allow(from) {
		exit(codeNotAllowed, fmt.Sprintf("cannot use the sandboxes: uid %d is not allowed to; only root and the agent's user are", from.UID))
		return
	}
	if !s.enter(from.UID) {
		exit(codeBusy, "cannot use the sandboxes: too many commands run already; try again when one has ended")
		return
	}
	defer s.leave(from.UID)
	_ = c.SetReadDeadline(time.Now().Add(requestTime)) // it is our own socket
	var buf []byte
	k, n, err := f.head(requestMost)
	var data []byte
	if err == nil {
		release, ok := s.keep(from.UID, n)
		if !ok {
			exit(codeBusy, "cannot use the sandboxes: too much is being asked already; try again when a command has ended")
			return
		}
		defer release()
		data, err = f.body(&buf, n)
	}
	var req Request
	if err == nil && k == kindRequest {
		err = json.Unmarshal(data, &req)
	}
	if err != nil || k != kindRequest {
		exit(2, "cannot read the request: it is not in the form that this version of hinit expects")
		return
	}
	_ = c.SetReadDeadline(time.Time{}) // it is our own socket
	buf = nil                          // a long one is not to stay
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	in := newInput(f, req.Stdin)
	reading := make(chan struct{})
	go func() {
		defer close(reading)
		defer guard.Catch("the input of a sandbox's command")
		in.read(&buf)
		cancel() // the caller has gone
	}()
	code := s.Handle(ctx, from, req, in.streams())
	exit(code, "")
	_ = c.Close() // ends the reading
	<-reading
}

// peerOf asks the kernel who has connected (unix(7), SO_PEERCRED).
func peerOf(c net.Conn) (Peer, error) {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return Peer{}, errors.New("not a unix socket")
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return Peer{}, err
	}
	var cred *unix.Ucred
	var failed error
	if err := raw.Control(func(fd uintptr) { cred, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return Peer{}, err
	}
	if failed != nil {
		return Peer{}, failed
	}
	return Peer{PID: int(cred.Pid), UID: cred.Uid, GID: cred.Gid}, nil
}
