package cluster

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// FaultProxy is a TCP proxy between one pod and the API server. Tests use it to delay, drop or cut the
// pod's connections.
type FaultProxy struct {
	Address string // Address of the proxy, HOST:PORT.

	upstream string
	listener net.Listener
	dropping atomic.Bool  // Drop all data in both directions, like a network with total packet loss.
	delay    atomic.Int64 // Delay of each piece of data in either direction, in nanoseconds.

	mu       sync.Mutex
	refusing bool
	conns    map[net.Conn]bool
}

// NewFaultProxy starts a proxy to the API server. The caller calls Shutdown when no pod needs it any more.
func (c *Cluster) NewFaultProxy() (*FaultProxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	g := &FaultProxy{Address: l.Addr().String(), upstream: "127.0.0.1:" + c.port, listener: l, conns: map[net.Conn]bool{}}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go g.serve(c)
		}
	}()
	return g, nil
}

// Shutdown ends all connections and stops listening.
func (g *FaultProxy) Shutdown() {
	_ = g.listener.Close()
	g.Disconnect()
}

// DropAll drops all data until Restore is called.
func (g *FaultProxy) DropAll() { g.dropping.Store(true) }

// Delay delays each piece of data until Restore is called.
func (g *FaultProxy) Delay(d time.Duration) { g.delay.Store(int64(d)) }

func (g *FaultProxy) serve(c net.Conn) {
	defer c.Close()
	if !g.add(c) {
		return
	}
	defer g.remove(c)
	server, err := net.Dial("tcp", g.upstream)
	if err != nil {
		return
	}
	defer server.Close()
	var both sync.WaitGroup
	both.Go(func() { g.copy(server, c); _ = server.Close() })
	both.Go(func() { g.copy(c, server); _ = c.Close() })
	both.Wait()
}

func (g *FaultProxy) copy(to io.Writer, from io.Reader) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		<-time.After(time.Duration(g.delay.Load()))
		if n > 0 && !g.dropping.Load() {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (g *FaultProxy) add(c net.Conn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.refusing {
		g.conns[c] = true
	}
	return !g.refusing
}

func (g *FaultProxy) remove(c net.Conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.conns, c)
}

// Disconnect ends all connections and refuses new ones until Restore is called.
func (g *FaultProxy) Disconnect() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.refusing = true
	for c := range g.conns {
		_ = c.Close()
	}
}

// Restore ends all delays and drops. It cuts the connections that have lost data.
func (g *FaultProxy) Restore() {
	g.Disconnect()
	g.delay.Store(0)
	g.dropping.Store(false)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.refusing = false
}
