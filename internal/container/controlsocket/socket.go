// Package controlsocket opens and serves the control socket of PID 1 and the FIFO for orders beside it, and hands both over.
//
// Without a socket PID 1 works, but can't be asked anything. The package owns a goroutine that serves the socket and one that reads
// the FIFO.
package controlsocket

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"hinit/internal/blocking"
	"hinit/internal/boot"
	"hinit/internal/container/orderfifo"
	"hinit/internal/control"
	"hinit/internal/guard"
)

// leaveTime is how long requests under way may take to get an answer before the socket is handed over.
const leaveTime = time.Second

// Socket is the control socket. Its methods may be called from any goroutine.
type Socket struct {
	core    control.Core
	options control.Options
	teller  Teller

	mu       sync.Mutex
	server   *control.Server
	listener net.Listener    // of the server
	waiting  *control.Socket // of the program before this one, which nobody serves yet; nil for none
	orders   bool            // orders are taken from the FIFO
}

// Teller gets what there is to say: a line for the container log, or a warning that status goes on showing.
type Teller interface {
	Say(format string, args ...any)
	Warn(format string, args ...any)
}

// New makes a Socket that is not open.
func New(core control.Core, options control.Options, teller Teller) *Socket {
	return &Socket{core: core, options: options, teller: teller}
}

// Open makes the socket at a path, "" for the usual places, and serves it.
func (s *Socket) Open(path string) error {
	var place boot.Runtime
	_ = blocking.Do(blocking.Runtime, func() error {
		place = boot.PrepareRuntime(path, os.LookupEnv, os.Geteuid())
		return nil
	})
	if place.Warning != "" {
		s.teller.Warn("%s", place.Warning)
	}
	if place.Socket == "" {
		return errors.New("there is no place for the control socket, so hinit status and its sisters won't work")
	}
	var l net.Listener
	err := blocking.Do(blocking.Runtime, func() (err error) {
		l, err = control.Listen(place.Socket)
		return err
	})
	if err != nil {
		return fmt.Errorf("cannot open the control socket, so hinit status and its sisters won't work: %w", err)
	}
	s.serve(l)
	return nil
}

// serve begins to answer on a socket.
func (s *Socket) serve(l net.Listener) {
	server := control.New(s.core, s.options)
	s.mu.Lock()
	s.server, s.listener = server, l
	s.mu.Unlock()
	if dir := s.Dir(); dir != "" {
		s.takeOrders(dir)
	}
	guard.Go("answering on the control socket", func() {
		if err := server.Serve(l); err != nil {
			s.teller.Warn("the control socket is gone: %v", err)
		}
	})
}

// takeOrders carries out what is written into the FIFO, until PID 1 ends: whatever server there is then has the orders.
func (s *Socket) takeOrders(dir string) {
	s.mu.Lock()
	already := s.orders
	s.orders = true
	s.mu.Unlock()
	if already {
		return
	}
	f, err := orderfifo.Open(dir)
	if err != nil {
		s.mu.Lock()
		s.orders = false
		s.mu.Unlock()
		s.teller.Warn("hinit takes no orders by a FIFO: %v", err)
		return
	}
	guard.Go("taking orders", func() {
		defer f.Close()
		orderfifo.Serve(f, func(ctx context.Context, order string) string { return s.serving().Order(ctx, order) }, s.teller.Say)
	})
}

// Dir is the directory of the socket, "" where there is none: the socket isn't open, or has no file.
func (s *Socket) Dir() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listener == nil {
		return ""
	}
	if dir := filepath.Dir(s.listener.Addr().String()); filepath.IsAbs(dir) { // not beside an abstract name
		return dir
	}
	return ""
}

func (s *Socket) serving() *control.Server {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.server
}

// Close ends the serving. A client that still waits when ctx ends is cut off.
func (s *Socket) Close(ctx context.Context) {
	if server := s.serving(); server != nil {
		_ = server.Close(ctx)
	}
}

// Detach returns the socket as the next program can take it over, nil if there is none.
func (s *Socket) Detach() *control.Socket {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listener == nil {
		return s.waiting
	}
	socket, err := control.Detach(s.listener)
	if err != nil {
		return nil
	}
	return &socket
}

// Leave is Detach, and ends what the server is at. [Socket.Rejoin] undoes it.
func (s *Socket) Leave() *control.Socket {
	socket := s.Detach()
	if server := s.serving(); socket != nil && server != nil {
		ctx, cancel := context.WithTimeout(context.Background(), leaveTime)
		defer cancel()
		_ = server.Leave(ctx) // a client that does not take an answer does without
	}
	return socket
}

// Inherit takes note of the socket of the program before this one, nil for none. It is served from [Socket.Rejoin] on.
func (s *Socket) Inherit(socket *control.Socket) { s.waiting = socket }

// Rejoin serves a socket that was detached: the given one, or with nil the inherited one, if there is one.
func (s *Socket) Rejoin(socket *control.Socket) {
	s.mu.Lock()
	if socket == nil && s.listener == nil {
		socket = s.waiting
	}
	s.mu.Unlock()
	if socket == nil {
		return
	}
	var l net.Listener
	err := blocking.Do(blocking.Runtime, func() (err error) {
		l, err = control.Attach(*socket)
		return err
	})
	if err != nil {
		s.teller.Warn("the control socket is gone: %v", err)
		return
	}
	s.serve(l)
}
