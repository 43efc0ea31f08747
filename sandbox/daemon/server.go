package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"hinit/internal/guard"
	"hinit/sandbox"
	"hinit/sandbox/mux"
)

// Peer is who has connected, by the kernel's word.
type Peer struct {
	PID      int
	UID, GID uint32
	Conn     net.Conn
}

// Request is one command line.
type Request struct {
	Docker bool              `json:"docker,omitempty"` // the docker command's, else hinit sandbox's
	Args   []string          `json:"args"`
	Home   string            `json:"home,omitempty"`   // HERMES_HOME of the caller: which profile it says it is
	Env    map[string]string `json:"env,omitempty"`    // of the variables that the command line names
	Stdin  bool              `json:"stdin,omitempty"`  // standard input is sent
	Parent string            `json:"parent,omitempty"` // that runs docker commands, where the service can't see the caller's processes
	TTY    bool              `json:"tty,omitempty"`    // standard input is a terminal, of this size
	Size   sandbox.Size      `json:"size,omitzero"`
}

// Streams are the streams of a request, on either side.
type Streams = sandbox.Streams

// Handler answers a request and returns the exit code of its command. The context ends when the caller has gone.
type Handler func(ctx context.Context, from Peer, req Request, streams Streams) int

// Server answers connections.
type Server struct {
	Handle Handler
	// Allow says why a caller may not ask at all, nil for one that may; a nil Allow allows everybody.
	Allow func(Peer) error

	mu      sync.Mutex
	reading map[uint32][]net.Conn // connections that have not said what they want, the oldest first
	long    map[uint32]int        // bytes of long requests, of each user who has any
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
	if n > 0 && s.long[uid]+n > longRequests {
		return false
	}
	if s.long[uid] += n; s.long[uid] == 0 {
		delete(s.long, uid)
	}
	return true
}

// codeNotAllowed is the exit code of a caller that may not ask.
const codeNotAllowed = 5

// requestTime is how long a connection may take to say what it wants.
const requestTime = 5 * time.Second

// Serve answers until the context ends. Then it closes every connection and returns when all are gone.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	s.reading, s.long = map[uint32][]net.Conn{}, map[uint32]int{}
	return mux.Each(ctx, l, func(c net.Conn) { s.serve(ctx, c) })
}

// readingMost is how many connections of one user may be about to say what they want. One too many ends the oldest.
const readingMost = 64

// await notes a connection that is about to say what it wants, until done.
func (s *Server) await(uid uint32, c net.Conn) (done func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
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

func (s *Server) serve(ctx context.Context, nc net.Conn) {
	defer nc.Close()
	cred, err := mux.Peer(nc)
	if err != nil {
		return
	}
	from := Peer{PID: int(cred.Pid), UID: cred.Uid, GID: cred.Gid, Conn: nc}
	done := s.await(from.UID, nc)
	defer done()
	_ = nc.SetReadDeadline(time.Now().Add(requestTime)) // it is our own socket
	c := mux.Accept(nc, func(mux.Hello) (hello mux.Hello) {
		if s.Allow != nil {
			if err := s.Allow(from); err != nil {
				hello.Code, hello.Refused = codeNotAllowed, fmt.Sprintf("cannot use the sandboxes: %v", err)
			}
		}
		return hello
	})
	if c == nil {
		return
	}
	kept := 0
	defer func() { s.keep(from.UID, -kept) }()
	keep := func(n int) error {
		switch {
		case n <= shortRequest:
			return nil
		case !s.keep(from.UID, n):
			return errors.New("cannot use the sandboxes: too much is being asked already; try again when a command has ended")
		}
		kept += n
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var answering sync.WaitGroup
	defer answering.Wait()
	begun := false
	mux.Serve(c, keep, func(ch *mux.Served, req Request) {
		streams := served(ch, req, cancel)
		if begun { // one connection is for one request
			cancel()
			return
		}
		begun = true
		done()
		_ = nc.SetReadDeadline(time.Time{}) // the same
		answering.Go(func() {
			defer guard.Catch("a request for a sandbox")
			defer nc.Close()                                                // ends the reading
			_ = ch.Send(mux.KindBegun, mux.Number(0))                       // a caller that is gone needs no answer
			_ = ch.Finish(mux.End{Code: s.Handle(ctx, from, req, streams)}) // the same
		})
	})
}

// served are the streams of a request. gone is called when its caller has gone. Of sizes the newest counts.
func served(ch *mux.Served, req Request, gone func()) Streams {
	resizes := make(chan sandbox.Size, 1)
	ch.Kill = func(time.Duration) { gone() }
	ch.Resize = func(columns, rows uint16) {
		select {
		case <-resizes:
		default:
		}
		resizes <- sandbox.Size{Columns: columns, Rows: rows}
	}
	s := Streams{Out: ch.Output, Err: ch.Errors, Resizes: resizes}
	if req.Stdin {
		s.In = ch.Input
	}
	return s
}
