package host

import (
	"net"
	"slices"
	"sync"
	"sync/atomic"
)

// The maximum numbers of open connections to this host: in total, and from one pod. Each host opens at most one connection for
// each of its workers.
const (
	maxConnections       = 256
	maxConnectionsPerPod = 4 * workers
)

// callers are the open connections, the oldest first. Each pod of the pool can reach the port, so agents can open many
// connections. If there are too many connections, the oldest one whose request names no offer is closed. Agents don't know the
// nonce of an offer, so their connections are closed first.
type callers struct {
	mu  sync.Mutex
	all []*call
}

// add adds a connection, and reports whether the connection may stay open. If not, the caller closes it.
func (c *callers) add(one *call) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	of := 0
	for _, other := range c.all {
		if other.address == one.address {
			of++
		}
	}
	if of >= maxConnectionsPerPod || len(c.all) >= maxConnections {
		i := slices.IndexFunc(c.all, func(other *call) bool {
			return !other.named.Load() && (of < maxConnectionsPerPod || other.address == one.address)
		})
		if i < 0 {
			return false
		}
		_ = c.all[i].Conn.Close() // closing the connection makes its request fail
		c.all = slices.Delete(c.all, i, i+1)
	}
	c.all = append(c.all, one)
	return true
}

func (c *callers) remove(one *call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = slices.DeleteFunc(c.all, func(other *call) bool { return other == one })
}

// limitedListener is a listener that limits the open connections, see callers.
type limitedListener struct {
	net.Listener
	callers *callers
}

// Accept implements net.Listener.
func (l limitedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		address, _, _ := net.SplitHostPort(c.RemoteAddr().String())
		if one := (&call{Conn: c, callers: l.callers, address: address}); l.callers.add(one) {
			return one, nil
		}
		_ = c.Close()
	}
}

// call is an open connection.
type call struct {
	net.Conn
	callers *callers
	address string
	named   atomic.Bool // the request names an offer, so the connection is not closed in favour of others
}

// callKey is the key under which the context of a request holds its call.
type callKey struct{}

// Close implements net.Conn.
func (c *call) Close() error {
	c.callers.remove(c)
	return c.Conn.Close()
}
