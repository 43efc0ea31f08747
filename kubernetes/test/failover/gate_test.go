package failover

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// gate is the way of one pod to the API server.
type gate struct {
	address string
	to      string
	silent  atomic.Bool  // nothing passes, as when packets are dropped
	delay   atomic.Int64 // nanoseconds, for each piece that passes in a direction

	mu     sync.Mutex
	closed bool // new connections end at once
	conns  map[net.Conn]bool
}

func newGate(t *testing.T, port string) *gate {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{address: l.Addr().String(), to: "127.0.0.1:" + port, conns: map[net.Conn]bool{}}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go g.pass(c)
		}
	}()
	return g
}

// pass connects a client with the API server.
func (g *gate) pass(c net.Conn) {
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

func (g *gate) copy(to io.Writer, from io.Reader) {
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

func (g *gate) add(c net.Conn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closed {
		g.conns[c] = true
	}
	return !g.closed
}

func (g *gate) remove(c net.Conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.conns, c)
}

// close ends all connections and refuses new ones.
func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	for c := range g.conns {
		_ = c.Close()
	}
}

// open lets everything pass again. Connections that have lost something end.
func (g *gate) open() {
	g.close()
	g.delay.Store(0)
	g.silent.Store(false)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = false
}
