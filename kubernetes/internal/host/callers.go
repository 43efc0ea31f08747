package host

import (
	"net"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Limits for the open connections to this host: in all, and from one pod. A host opens at most one connection for each of its
// workers.
const (
	maxConnections       = 256
	maxConnectionsPerPod = 4 * workers
)

// openConnections are the open connections, oldest first. Any pod of the pool can reach the port, so agents can open many
// connections. If there are too many, add closes the oldest one that has not named an offer. An agent can't name one, because
// it doesn't know the nonce. add prefers to close connections without an unread message, because an unread message may name
// an offer.
type openConnections struct {
	mu          sync.Mutex
	connections []*connection
}

// add adds a connection, and reports whether it may stay open. Otherwise the caller closes it.
func (c *openConnections) add(one *connection) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	of := 0
	for _, other := range c.connections {
		if other.address == one.address {
			of++
		}
	}
	if of >= maxConnectionsPerPod || len(c.connections) >= maxConnections {
		silent := func(other *connection) bool {
			return !other.hasOffer.Load() && (of < maxConnectionsPerPod || other.address == one.address)
		}
		i := slices.IndexFunc(c.connections, func(other *connection) bool { return silent(other) && !other.unread() })
		if i < 0 {
			i = slices.IndexFunc(c.connections, silent)
		}
		if i < 0 {
			return false
		}
		_ = c.connections[i].Conn.Close() // Closing the connection makes its request fail.
		c.connections = slices.Delete(c.connections, i, i+1)
	}
	c.connections = append(c.connections, one)
	return true
}

func (c *openConnections) remove(one *connection) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.connections = slices.DeleteFunc(c.connections, func(other *connection) bool { return other == one })
}

// limitedListener limits the open connections of a listener, see [openConnections].
type limitedListener struct {
	net.Listener
	callers *openConnections
}

// Accept implements [net.Listener].
func (l limitedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		address, _, _ := net.SplitHostPort(c.RemoteAddr().String())
		if one := (&connection{Conn: c, callers: l.callers, address: address}); l.callers.add(one) {
			return one, nil
		}
		_ = c.Close()
	}
}

// connection is an open connection from another host.
type connection struct {
	net.Conn
	callers  *openConnections
	address  string
	hasOffer atomic.Bool // Whether the client has named a valid offer. openConnections does not close such a connection to make room.
}

// unread reports whether a message has arrived that this host has not read yet.
func (c *connection) unread() bool {
	n := 0
	if tcp, is := c.Conn.(*net.TCPConn); is {
		raw, err := tcp.SyscallConn()
		if err != nil {
			return false
		}
		_ = raw.Control(func(fd uintptr) { n, _, _ = unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT) }) // After an error, n is -1.
	}
	return n > 0
}

// Close implements [net.Conn].
func (c *connection) Close() error {
	c.callers.remove(c)
	return c.Conn.Close()
}
