package control

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
	"hinit/internal/guard"
)

// answerTime is the time that requests in progress still get to finish before a re-execution hands over the socket.
const answerTime = time.Second

// Endpoint is the control socket of PID 1 and the FIFO for orders. A [Server] serves the socket. If a re-execution fails,
// the Endpoint continues with a new Server. The Endpoint owns a goroutine that serves the socket and one that reads the
// FIFO. Its methods may be called from any goroutine.
type Endpoint struct {
	core    Backend
	options Options

	mu          sync.Mutex
	server      *Server
	listener    net.Listener // listener on the control socket
	predecessor *Socket      // socket of the previous program until it is served, or nil
	orders      *os.File     // FIFO for orders, or nil
}

// NewEndpoint returns an Endpoint that is not open.
func NewEndpoint(core Backend, options Options) *Endpoint {
	return &Endpoint{core: core, options: options}
}

// Open makes the socket at a path and serves it.
func (e *Endpoint) Open(path string) error {
	return e.listen("cannot open the control socket, so hinit status and its sisters won't work", func() (net.Listener, error) { return Listen(path) })
}

// OpenAt chooses a path for the control socket and opens it there. configured is the path from the configuration, or "". It
// blocks on the disk.
func (e *Endpoint) OpenAt(configured string) error {
	var place boot.Runtime
	blocking.Run(blocking.Runtime, func() { place = boot.PrepareRuntime(configured, os.LookupEnv, os.Geteuid()) })
	if place.Warning != "" {
		e.options.Warn("%s", place.Warning)
	}
	if place.Socket == "" {
		return errors.New("there is no place for the control socket, so hinit status and its sisters won't work")
	}
	return e.Open(place.Socket)
}

// listen calls open and serves the listener that open returns. The text of an error begins with the argument failed.
func (e *Endpoint) listen(failed string, open func() (net.Listener, error)) error {
	l, err := blocking.Get(blocking.Runtime, open)
	if err != nil {
		return fmt.Errorf("%s: %w", failed, err)
	}
	e.serve(l)
	return nil
}

// serve starts a server on a listener, and opens the FIFO.
func (e *Endpoint) serve(l net.Listener) {
	server := New(e.core, e.options)
	e.mu.Lock()
	e.server, e.listener = server, l
	e.mu.Unlock()
	if dir := e.Dir(); dir != "" {
		e.takeOrders(dir)
	}
	guard.Go("answering on the control socket", func() {
		if err := server.Serve(l); err != nil {
			e.options.Warn("the control socket is gone: %v", err)
		}
	})
}

// takeOrders creates the FIFO in dir, and reads orders from it until the Endpoint is closed. The current server carries out the
// orders.
func (e *Endpoint) takeOrders(dir string) {
	e.mu.Lock()
	taken := e.orders != nil
	e.mu.Unlock()
	if taken {
		return
	}
	f, err := openOrders(dir)
	if err != nil {
		e.options.Warn("hinit takes no orders by a FIFO: %v", err)
		return
	}
	e.mu.Lock()
	e.orders = f
	e.mu.Unlock()
	guard.Go("taking orders", func() {
		serveOrders(f, func(order string) string { return e.serving().Order(context.Background(), order) }, e.options.Say)
	})
}

// Dir returns the directory of the socket. The result is "" if the socket isn't open or is abstract.
func (e *Endpoint) Dir() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.listener == nil {
		return ""
	}
	if dir := filepath.Dir(e.listener.Addr().String()); filepath.IsAbs(dir) { // an abstract socket has no directory
		return dir
	}
	return ""
}

func (e *Endpoint) serving() *Server {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.server
}

// Close ends the server. When ctx ends, it cuts off the clients that still wait.
func (e *Endpoint) Close(ctx context.Context) {
	e.mu.Lock()
	if e.orders != nil {
		_ = e.orders.Close() // closing a reader loses nothing
	}
	e.mu.Unlock()
	if server := e.serving(); server != nil {
		_ = server.Close(ctx)
	}
}

// Detach returns the socket in a form that the next program can take over, or nil if the socket isn't open.
func (e *Endpoint) Detach() *Socket {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.listener == nil {
		return e.predecessor
	}
	socket, err := Detach(e.listener)
	if err != nil {
		return nil
	}
	return &socket
}

// Leave works like Detach, but also ends the requests in progress. [Endpoint.Rejoin] serves the socket again.
func (e *Endpoint) Leave() *Socket {
	socket := e.Detach()
	if server := e.serving(); socket != nil && server != nil {
		ctx, cancel := context.WithTimeout(context.Background(), answerTime)
		defer cancel()
		_ = server.Leave(ctx) // a client that does not read its answer in time loses it
	}
	return socket
}

// Inherit stores the socket that the previous program has handed over, or nil. [Endpoint.Rejoin] then serves it.
func (e *Endpoint) Inherit(socket *Socket) { e.predecessor = socket }

// Rejoin serves a detached socket. If socket is nil, it serves the socket from Inherit, if any.
func (e *Endpoint) Rejoin(socket *Socket) {
	e.mu.Lock()
	if socket == nil && e.listener == nil {
		socket = e.predecessor
	}
	e.mu.Unlock()
	if socket == nil {
		return
	}
	if err := e.listen("the control socket is gone", func() (net.Listener, error) { return Attach(*socket) }); err != nil {
		e.options.Warn("%v", err)
	}
}
