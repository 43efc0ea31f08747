package control

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/internal/blocking"
	"hinit/internal/boot"
	"hinit/internal/guard"
)

// requestEndTimeout is how long a re-execution waits for requests in progress before it hands over the socket.
const requestEndTimeout = time.Second

// Endpoint is the control socket of PID 1, with the FIFO for orders. A [Server] serves the socket; after a failed re-execution
// a new Server replaces it. The Endpoint owns two goroutines: one serves the socket, and one reads the FIFO. Any goroutine may
// call its methods.
type Endpoint struct {
	backend Backend
	options Options

	mu          sync.Mutex
	server      *Server
	listener    net.Listener // listener on the control socket
	predecessor *Socket      // socket from the previous program; nil once it is served
	orderFIFO   *os.File
}

// NewEndpoint returns an Endpoint without a socket.
func NewEndpoint(core Backend, options Options) *Endpoint {
	return &Endpoint{backend: core, options: options}
}

// Open creates the socket at path and serves it.
func (e *Endpoint) Open(path string) error {
	return e.listen("cannot open the control socket, so hinit status and its sisters won't work", func() (net.Listener, error) { return Listen(path) })
}

// OpenAt opens the socket at the path configured. If the path is "" or unusable, OpenAt chooses another path, see
// [boot.PrepareRuntime]. It blocks on the disk.
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

// listen serves the listener that open returns. failed is the beginning of the message if open fails.
func (e *Endpoint) listen(failed string, open func() (net.Listener, error)) error {
	l, err := blocking.Get(blocking.Runtime, open)
	if err != nil {
		return fmt.Errorf("%s: %w", failed, err)
	}
	e.serve(l)
	return nil
}

// serve starts a server on a listener and opens the FIFO.
func (e *Endpoint) serve(l net.Listener) {
	server := New(e.backend, e.options)
	e.mu.Lock()
	e.server, e.listener = server, l
	e.mu.Unlock()
	if dir := e.Dir(); dir != "" {
		e.startOrderFIFO(dir)
	}
	guard.Go("answering on the control socket", func() {
		if err := server.Serve(l); err != nil {
			e.options.Warn("the control socket is gone: %v", err)
		}
	})
}

// startOrderFIFO creates the FIFO in dir, and starts a goroutine that reads orders until CloseForReexec or Close. The current
// Server carries out each order.
func (e *Endpoint) startOrderFIFO(dir string) {
	f, err := openOrderFIFO(dir)
	if err != nil {
		e.options.Warn("hinit takes no orders by a FIFO: %v", err)
		return
	}
	e.mu.Lock()
	e.orderFIFO = f
	e.mu.Unlock()
	guard.Go("taking orders", func() {
		serveOrderFIFO(f, func(order string) string { return e.currentServer().Order(context.Background(), order) }, e.options.Say)
	})
}

// Dir returns the directory of the socket. It returns "" without a socket, and for an abstract socket.
func (e *Endpoint) Dir() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.listener == nil {
		return ""
	}
	if dir := filepath.Dir(e.listener.Addr().String()); filepath.IsAbs(dir) {
		return dir
	}
	return ""
}

func (e *Endpoint) currentServer() *Server {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.server
}

// Close ends the server and the FIFO. When ctx ends, it cuts off the remaining clients.
func (e *Endpoint) Close(ctx context.Context) {
	e.mu.Lock()
	_ = e.orderFIFO.Close() // without a FIFO, Close does nothing
	e.mu.Unlock()
	if server := e.currentServer(); server != nil {
		// Before Linux 6.16, closing the listener waits for TCP sockets that clients in the queue have passed, see
		// [blocking.DoWithPeer].
		_ = blocking.Wait(ctx, "the end of the control socket", func() error { return server.Close(ctx) })
	}
}

// Detach returns the socket for the next program, or nil if there is none. The server continues.
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
	socket.Orders = e.orderFIFO
	return &socket
}

// CloseForReexec ends the requests in progress, and detaches the socket like [Endpoint.Detach]. New orders wait in the FIFO.
// [Endpoint.Reattach] serves the socket and the FIFO again.
func (e *Endpoint) CloseForReexec() *Socket {
	socket := e.Detach()
	if server := e.currentServer(); socket != nil && server != nil {
		_ = socket.Orders.SetReadDeadline(time.Now()) // this ends serveOrderFIFO
		ctx, cancel := context.WithTimeout(context.Background(), requestEndTimeout)
		defer cancel()
		_ = server.CloseForReexec(ctx)
	}
	return socket
}

// Inherit stores the socket from the previous program, or nil, for [Endpoint.Reattach].
func (e *Endpoint) Inherit(socket *Socket) { e.predecessor = socket }

// Reattach serves a socket that was detached. If socket is nil, it serves the socket from Inherit, if any. If the socket can't be
// served, Reattach opens a new one at its path, because orders need a server too.
func (e *Endpoint) Reattach(socket *Socket) {
	e.mu.Lock()
	if socket == nil && e.listener == nil {
		socket = e.predecessor
	}
	e.mu.Unlock()
	if socket == nil {
		return
	}
	if err := e.listen("the control socket is lost, and a new one takes its place", func() (net.Listener, error) { return Attach(*socket) }); err != nil {
		e.options.Warn("%v", err)
		if err := e.Open(socket.Path); err != nil {
			e.options.Warn("%v", err)
		}
	}
	_ = socket.Orders.Close() // Only after listen has opened the FIFO: its content is lost when its last descriptor closes.
}

// A shell can write an order into a FIFO beside the control socket: echo stop NAME > /run/hinit/orders. That works even when
// the kernel can create no process or thread.

const (
	orderFIFOName   = "orders"
	maxQueuedOrders = 16
	maxOrderBytes   = 512
)

// openOrderFIFO opens the FIFO in dir. It creates the FIFO if it is missing, and replaces an unusable one. Only hinit's own user
// may write to it.
func openOrderFIFO(dir string) (f *os.File, err error) {
	err = blocking.Do(blocking.Runtime, func() error {
		path := filepath.Join(dir, orderFIFOName)
		var st unix.Stat_t
		if unix.Lstat(path, &st) != nil || st.Mode != unix.S_IFIFO|0o600 || int(st.Uid) != os.Geteuid() {
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			if err := unix.Mkfifo(path, 0o600); err != nil {
				return fmt.Errorf("cannot make the FIFO %q: %w", path, err)
			}
		}
		// With both ends open, a read never sees the end of the file, and opening doesn't wait for a writer.
		f, err = os.OpenFile(path, unix.O_RDWR|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		return err
	})
	return f, err
}

// serveOrderFIFO reads orders from f, one a line, until f is closed or its deadline has passed. carryOut carries out an order,
// may block, and describes the result. say writes this description to the container log.
func serveOrderFIFO(f *os.File, carryOut func(order string) string, say func(format string, args ...any)) {
	turns := make(chan struct{}, maxQueuedOrders)
	lines := bufio.NewReaderSize(f, maxOrderBytes)
	for {
		line, more, err := lines.ReadLine()
		if err != nil {
			if !errors.Is(err, os.ErrClosed) && !errors.Is(err, os.ErrDeadlineExceeded) {
				say("orders: no more are taken: %v", err)
			}
			return
		}
		order := strings.TrimSpace(string(line))
		switch {
		case more:
			for more && err == nil {
				_, more, err = lines.ReadLine()
			}
			say("orders: a line is longer than %d bytes, so it is left out", maxOrderBytes)
			continue
		case order == "":
			continue
		}
		select {
		case turns <- struct{}{}:
		default:
			say("orders: %q is not carried out: %d others are not done yet", order, maxQueuedOrders)
			continue
		}
		guard.Go("carrying out an order", func() {
			defer func() { <-turns }()
			for line := range strings.Lines(carryOut(order)) {
				say("orders: %s: %s", order, strings.TrimSuffix(line, "\n"))
			}
		})
	}
}

// Order carries out "stop NAME", "start NAME", "restart NAME" or "status" with the rights of hinit's own user. It returns the
// output of the command line, and blocks as long as the same request over the socket.
func (s *Server) Order(ctx context.Context, order string) string {
	words := strings.Fields(order)
	method, target := http.MethodPost, ""
	switch {
	case len(words) == 1 && words[0] == "status":
		method, target = http.MethodGet, "/v1/status?as=table"
	case len(words) == 2 && verbEffects[client.Verb(words[0])].participle != "":
		target = "/v1/services/" + url.PathEscape(words[1]) + "/" + words[0]
	default:
		return "it is none of: stop NAME, start NAME, restart NAME, status"
	}
	ctx = context.WithValue(ctx, peerKey{}, peer{pid: fifoPID, uid: s.policy.ownUID})
	r, err := http.NewRequestWithContext(ctx, method, target, http.NoBody)
	if err != nil {
		return err.Error()
	}
	r.Header.Set("Accept", client.MediaTypeText)
	out := bufferedResponse{header: make(http.Header)}
	s.serve(&out, r)
	return strings.TrimSpace(out.String())
}

// bufferedResponse is an http.ResponseWriter that collects the answer in memory.
type bufferedResponse struct {
	bytes.Buffer
	header http.Header
}

func (w *bufferedResponse) Header() http.Header { return w.header }

func (w *bufferedResponse) WriteHeader(int) {}
