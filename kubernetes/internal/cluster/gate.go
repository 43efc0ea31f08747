package cluster

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Gate is a TCP proxy between one pod and the API server. Tests use it to delay, drop or cut the
// pod's connections.
type Gate struct {
	Address string // Address of the proxy, HOST:PORT.

	to       string
	listener net.Listener
	silent   atomic.Bool  // Drop all data in both directions, like a network with total packet loss.
	delay    atomic.Int64 // Delay of each piece of data in either direction, in nanoseconds.

	mu     sync.Mutex
	closed bool
	conns  map[net.Conn]bool
}

// NewGate opens a gate to the API server. The caller calls End when no pod needs it any more.
func (c *Cluster) NewGate() (*Gate, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	g := &Gate{Address: l.Addr().String(), to: "127.0.0.1:" + c.port, listener: l, conns: map[net.Conn]bool{}}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go g.pass(c)
		}
	}()
	return g, nil
}

// End ends all connections and stops listening.
func (g *Gate) End() {
	_ = g.listener.Close()
	g.Close()
}

// Silence drops all data until Open is called.
func (g *Gate) Silence() { g.silent.Store(true) }

// Delay delays each piece of data until Open is called.
func (g *Gate) Delay(d time.Duration) { g.delay.Store(int64(d)) }

func (g *Gate) pass(c net.Conn) {
	defer c.Close()
	if !g.add(c) {
		return
	}
	defer g.remove(c)
	server, err := net.Dial("tcp", g.to)
	if err != nil {
		return
	}
	defer server.Close()
	var both sync.WaitGroup
	both.Go(func() { g.copy(server, c); _ = server.Close() })
	both.Go(func() { g.copy(c, server); _ = c.Close() })
	both.Wait()
}

func (g *Gate) copy(to io.Writer, from io.Reader) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		<-time.After(time.Duration(g.delay.Load()))
		if n > 0 && !g.silent.Load() {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (g *Gate) add(c net.Conn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closed {
		g.conns[c] = true
	}
	return !g.closed
}

func (g *Gate) remove(c net.Conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.conns, c)
}

// Close ends all connections and refuses new ones until Open is called.
func (g *Gate) Close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	for c := range g.conns {
		_ = c.Close()
	}
}

// Open ends all delays and drops. It cuts the connections that have lost data.
func (g *Gate) Open() {
	g.Close()
	g.delay.Store(0)
	g.silent.Store(false)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = false
}
