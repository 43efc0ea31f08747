package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/guard"
	"hinit/internal/pause"
	"hinit/sandbox"
	"hinit/sandbox/mux"
)

// Peer is who has connected, by the kernel's word.
type Peer struct {
	PID      int
	UID, GID uint32
}

// Request is one command line.
type Request struct {
	Docker bool              `json:"docker,omitempty"` // the docker command's, else hinit sandbox's
	Args   []string          `json:"args"`
	Home   string            `json:"home,omitempty"`  // HERMES_HOME of the caller: which profile it says it is
	Env    map[string]string `json:"env,omitempty"`   // of the variables that the command line names
	Stdin  bool              `json:"stdin,omitempty"` // standard input is sent
	TTY    bool              `json:"tty,omitempty"`   // standard input is a terminal, of this size
	Size   sandbox.Size      `json:"size,omitzero"`
}

// Streams are the streams of a request, on either side.
type Streams = sandbox.Streams

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
	reading map[uint32][]net.Conn // connections that have not said what they want, the oldest first
	running map[uint32]int
	total   int
	long    map[uint32]int // bytes of long requests
}

// The size up to which a request is not counted, and the bytes of one user's longer requests together.
const (
	shortRequest = 16 << 10
	longRequests = 16 << 20
)

// keep counts n bytes of a request, unless its user has too many.
func (s *Server) keep(uid uint32, n int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.long == nil {
		s.long = map[uint32]int{}
	}
	if n > 0 && s.long[uid]+n > longRequests {
		return false
	}
	if s.long[uid] += n; s.long[uid] == 0 {
		delete(s.long, uid)
	}
	return true
}

// The answers to connections that are not served.
const (
	codeNotAllowed = 5
	codeBusy       = 1
)

// requestTime is how long a connection may take to say what it wants.
const requestTime = 5 * time.Second

// Serve answers until the context ends. Then it closes every connection and returns when all are gone.
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
			pause.For(ctx, 50*time.Millisecond) // until somebody has closed one
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

// readingMost is how many connections of one user may be about to say what they want. One too many ends the oldest.
const readingMost = 64

// await notes a connection that is about to say what it wants, until done.
func (s *Server) await(uid uint32, c net.Conn) (done func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reading == nil {
		s.reading = map[uint32][]net.Conn{}
	}
	if all := s.reading[uid]; len(all) >= readingMost {
		_ = all[0].Close() // its own goroutine notices
		s.reading[uid] = slices.Delete(all, 0, 1)
	}
	s.reading[uid] = append(s.reading[uid], c)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.reading[uid] = slices.DeleteFunc(s.reading[uid], func(other net.Conn) bool { return other == c }); len(s.reading[uid]) == 0 {
			delete(s.reading, uid)
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
	cred, err := mux.Peer(c)
	if err != nil {
		return
	}
	from := Peer{PID: int(cred.Pid), UID: cred.Uid, GID: cred.Gid}
	w, hello := mux.NewWriter(c), mux.Hello{Version: mux.Version}
	if s.Allow != nil && !s.Allow(from) {
		hello.Code, hello.Refused = codeNotAllowed, fmt.Sprintf("cannot use the sandboxes: uid %d is not allowed to; only root and the agent's user are", from.UID)
	}
	if w.WriteJSON(mux.KindHello, 0, hello) != nil || hello.Refused != "" {
		return
	}
	_ = c.SetReadDeadline(time.Now().Add(requestTime)) // it is our own socket
	r := mux.NewReader(c)
	var req Request
	done := s.await(from.UID, c)
	channel, kept, err := s.request(r, from.UID, &req)
	done()
	if err == nil && !s.enter(from.UID) {
		err = errors.New("cannot use the sandboxes: too many commands run already; try again when one has ended")
	} else if err == nil {
		defer s.leave(from.UID)
	}
	defer s.keep(from.UID, -kept)
	ch := mux.NewServed(w, channel)
	if err != nil {
		_, _ = fmt.Fprintln(ch.Errors, err) // a caller that is gone needs no answer
		_ = ch.Finish(mux.End{Code: codeBusy})
		return
	}
	_ = c.SetReadDeadline(time.Time{}) // it is our own socket
	_ = ch.Send(mux.KindBegun, mux.Number(0))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	in := &input{ch: ch, w: w, resizes: make(chan sandbox.Size, 1), signals: make(chan sandbox.SignalNo, 8)}
	streams := Streams{Out: ch.Output, Err: ch.Errors, Resizes: in.resizes, Signals: in.signals}
	if req.Stdin {
		streams.In = ch.Input
	}
	reading := make(chan struct{})
	go func() {
		defer close(reading)
		defer guard.Catch("the input of a sandbox's command")
		in.read(r)
		cancel() // the caller has gone
		ch.Leave()
	}()
	_ = ch.Finish(mux.End{Code: s.Handle(ctx, from, req, streams)}) // the same
	_ = c.Close()                                                   // ends the reading
	<-reading
}

// errRequest says that a request can't be understood.
var errRequest = errors.New("cannot read the request: it is not in the form that this version of hinit expects")

// request reads a client's hello and its request, and returns the channel of it and how many bytes are kept.
func (s *Server) request(r *mux.Reader, uid uint32, req *Request) (channel uint32, kept int, err error) {
	gather := new(mux.Gather)
	for first := true; ; first = false {
		f, err := r.Next()
		switch {
		case err != nil:
			return channel, kept, errRequest
		case first && f.Kind == mux.KindHello:
			continue
		case first || f.Kind != mux.KindOpen || channel != 0 && f.Channel != channel:
			return channel, kept, errRequest
		}
		channel = f.Channel
		if n := len(f.Data); n > shortRequest {
			if !s.keep(uid, n) {
				return channel, kept, errors.New("cannot use the sandboxes: too much is being asked already; try again when a command has ended")
			}
			kept += n
		}
		whole, err := gather.Add(f, req)
		if err != nil {
			return channel, kept, errRequest
		}
		if whole {
			return channel, kept, nil
		}
	}
}

// input is what a caller sends while its command runs.
type input struct {
	ch      *mux.Served
	w       *mux.Writer
	resizes chan sandbox.Size
	signals chan sandbox.SignalNo
}

// read returns when the caller has gone, or says something that makes no sense. It never waits for the command.
func (i *input) read(r *mux.Reader) {
	for {
		f, err := r.Next()
		if err != nil || !i.take(f) {
			return
		}
	}
}

func (i *input) take(f mux.Frame) bool {
	switch f.Kind {
	case mux.KindPing:
		return i.w.Write(mux.KindPong, 0, nil) == nil
	case mux.KindResize:
		columns, rows, err := mux.ParseSize(f.Data)
		select {
		case <-i.resizes: // an older one that nothing has taken yet
		default:
		}
		i.resizes <- sandbox.Size{Columns: columns, Rows: rows}
		return err == nil
	case mux.KindSignal:
		n, err := mux.ParseNumber(f.Data)
		if err != nil || n < 1 || n > 64 { // it would end the container's connection, which is also others'
			return false
		}
		select {
		case i.signals <- sandbox.SignalNo(n):
		default: // the command does not take them; one too many says nothing new
		}
		return true
	default:
		return i.ch.Take(f)
	}
}
