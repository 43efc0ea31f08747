package control

import (
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"hinit/client"
)

// maxConns is how many connections a class of callers may have open. Each class has its own share, so that neither the
// agent nor a stranger can lock root out.
const maxConns = 128

// Connections that are turned away stay half open for leaveTime, but only so many of them.
const (
	maxLeaving = 64
	leaveTime  = 100 * time.Millisecond
)

// gate is a listener that knows who connects and bounds how many do.
type gate struct {
	net.Listener
	policy policy
	places *places
}

// places counts connections, for all listeners of a server.
type places struct {
	taken   [classes]atomic.Int32
	leaving atomic.Int32 // turned away and not closed yet
}

// conn is a connection that knows its peer and gives its place back when it is closed.
type conn struct {
	net.Conn
	peer    peer
	release func()
}

// Accept returns the next connection there is room for. The others are answered without reading, and closed.
func (g *gate) Accept() (net.Conn, error) {
	for {
		c, err := g.Listener.Accept()
		if err != nil {
			return nil, err
		}
		who, err := peerOf(c)
		if err != nil {
			_ = c.Close() // nobody we could name
			continue
		}
		n := &g.places.taken[g.policy.classOf(who)]
		if n.Add(1) > maxConns {
			n.Add(-1)
			g.turnAway(c)
			continue
		}
		return &conn{Conn: c, peer: who, release: sync.OnceFunc(func() { n.Add(-1) })}, nil
	}
}

// Close closes the connection and gives its place back.
func (c *conn) Close() error {
	defer c.release()
	return c.Conn.Close()
}

// turnAway answers a connection that is one too many. The answer fits into the empty buffer of a new socket, so writing
// it does not wait; the deadline is for the case that it does. The connection stays half open for a moment, because some
// clients (curl) take one that is closed before they have sent anything for one that was never made.
func (g *gate) turnAway(c net.Conn) {
	out := failure(refuse(client.KindBusy, "%d connections to hinit are open, which is the limit; try again", maxConns))
	_ = c.SetWriteDeadline(time.Now().Add(time.Second))
	// Whoever does not read the answer loses only the answer.
	_, _ = fmt.Fprintf(c, "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s",
		out.status, http.StatusText(out.status), len(out.body), out.body)
	leave := func() {
		g.places.leaving.Add(-1)
		_ = c.Close() // nothing more is to be said
	}
	half, ok := c.(interface{ CloseWrite() error })
	if g.places.leaving.Add(1) > maxLeaving || !ok || half.CloseWrite() != nil {
		leave()
		return
	}
	time.AfterFunc(leaveTime, leave)
}
