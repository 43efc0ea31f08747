package control

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/internal/blocking"
)

// maxConns is the number of connections per class of callers, so that neither the agent nor a stranger can lock root out.
const maxConns = 128

// fewConns is that number where PID 1 may open few files: all classes together stay within those that it keeps for itself
// (internal/tuning).
const fewConns = 16

// mostConns is one or the other.
var mostConns = sync.OnceValue(func() int32 {
	files := unix.Rlimit{Cur: 4096}
	_ = unix.Getrlimit(unix.RLIMIT_NOFILE, &files)
	return connsFor(files.Cur)
})

func connsFor(files uint64) int32 {
	if files < 4096 {
		return fewConns
	}
	return maxConns
}

// mostWaits is how many of them may wait without a limit. The others are left for requests that end.
func mostWaits() int32 { return mostConns() / 4 * 3 }

// leaveTime is how long refused connections stay half open, but only a quarter of mostConns.
const leaveTime = 100 * time.Millisecond

// gate is a listener that knows its callers and limits their number.
type gate struct {
	net.Listener
	policy policy
	places *places
}

// places counts connections, for all listeners of a server.
type places struct {
	taken   [classes]atomic.Int32
	waits   [classes]atomic.Int32 // requests, of those
	leaving atomic.Int32          // turned away and not closed yet
	closing sync.Mutex            // held while one is closed
}

// close closes a connection, one at a time to save threads. The close takes no turn: package net waits for a reader, which may wait for a
// turn itself. It waits for nothing else, because what the peer has sent was taken before.
func (p *places) close(c net.Conn) error {
	if raw, err := c.(syscall.Conn).SyscallConn(); err == nil { // every socket has one
		_ = raw.Control(blocking.Drain) // it fails where the connection is closed
	}
	p.closing.Lock()
	defer p.closing.Unlock()
	return c.Close()
}

// conn is a connection that knows its peer and gives its place back when it is closed. Reads and writes take turns, which limits
// the number of threads.
type conn struct {
	net.Conn
	raw     syscall.RawConn
	peer    peer
	places  *places
	release func()
}

// Read reads like a net.Conn.
func (c *conn) Read(p []byte) (n int, err error) {
	if len(p) == 0 {
		return 0, nil
	}
	failed := c.raw.Read(func(fd uintptr) (done bool) {
		if len(p) == 1 {
			n, err = c.call(hungUp, fd, p)
		} else {
			n, err = c.call(unix.Read, fd, p)
		}
		return !errors.Is(err, unix.EAGAIN)
	})
	if failed == nil && err == nil && n == 0 {
		err = io.EOF
	}
	return n, cmp.Or(failed, named("read", err))
}

// hungUp stands for the read of one byte, by which net/http learns while a handler runs that the client is gone. It takes no byte: with
// one that a client has sent too early net/http would stop looking.
func hungUp(fd int, _ []byte) (int, error) {
	ask := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
	if n, err := unix.Poll(ask, 0); n > 0 || err != nil {
		return 0, err
	}
	return 0, unix.EAGAIN
}

// Write writes like a net.Conn.
func (c *conn) Write(p []byte) (sent int, err error) {
	failed := c.raw.Write(func(fd uintptr) (done bool) {
		for sent < len(p) {
			n := 0
			if n, err = c.call(unix.Write, fd, p[sent:]); err != nil {
				return !errors.Is(err, unix.EAGAIN)
			}
			sent += n
		}
		return true
	})
	return sent, cmp.Or(failed, named("write", err))
}

// named says which call an error of the kernel's is of.
func named(call string, err error) error {
	if errno := syscall.Errno(0); errors.As(err, &errno) {
		return &net.OpError{Op: call, Net: "unix", Err: os.NewSyscallError(call, err)}
	}
	return err
}

// call makes a call that does not wait. Root has turns of its own.
func (c *conn) call(do func(fd int, p []byte) (int, error), fd uintptr, p []byte) (n int, err error) {
	turn := blocking.Peer
	if c.peer.uid == 0 {
		turn = func(f func() error) error { return blocking.Do(blocking.Short, f) }
	}
	err = turn(func() (err error) {
		for n, err = do(int(fd), p); errors.Is(err, unix.EINTR); n, err = do(int(fd), p) {
		}
		return err
	})
	return max(n, 0), err
}

// Accept returns the next connection that has a place. It answers others without reading, and closes them.
func (g *gate) Accept() (net.Conn, error) {
	for {
		c, err := g.Listener.Accept()
		if err != nil {
			return nil, err
		}
		who, err := peerOf(c)
		var raw syscall.RawConn
		if err == nil {
			raw, err = c.(syscall.Conn).SyscallConn() // every socket has one
		}
		if err != nil {
			_ = g.places.close(c) // a client without a name
			continue
		}
		n := &g.places.taken[g.policy.classOf(who)]
		if n.Add(1) > mostConns() {
			n.Add(-1)
			g.turnAway(c, who)
			continue
		}
		return &conn{Conn: c, raw: raw, peer: who, places: g.places, release: sync.OnceFunc(func() { n.Add(-1) })}, nil
	}
}

// wait takes a place for a request that waits without a limit. release gives it back.
func (s *Server) wait(who peer) (release func(), err error) {
	n := &s.places.waits[s.policy.classOf(who)]
	if n.Add(1) > mostWaits() {
		n.Add(-1)
		return nil, refuse(client.KindBusy,
			"users such as uid %d have %d calls waiting for something to happen, which is their limit; end some of them: s6-svwait, hinit events --follow", who.uid, mostWaits())
	}
	return func() { n.Add(-1) }, nil
}

// Close closes the connection and gives its place back.
func (c *conn) Close() error {
	c.release()
	return c.places.close(c.Conn)
}

// turnAway refuses a connection. The answer fits into the empty buffer of a new socket, so writing does not block; the deadline is
// for the case that it does. The connection stays half open for a moment, because curl reports an early close as a failed
// connection.
func (g *gate) turnAway(c net.Conn, who peer) {
	out := failure(refuse(client.KindBusy, "users such as uid %d have %d connections to hinit open, which is their limit; end what keeps them open, or try again", who.uid, mostConns()))
	_ = c.SetWriteDeadline(time.Now().Add(time.Second))
	_, _ = fmt.Fprintf(c, "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s",
		out.status, http.StatusText(out.status), len(out.body), out.body)
	leave := func() {
		g.places.leaving.Add(-1)
		_ = g.places.close(c) // nothing more is to be said
	}
	half, ok := c.(interface{ CloseWrite() error })
	if g.places.leaving.Add(1) > mostConns()/4 || !ok || half.CloseWrite() != nil {
		leave()
		return
	}
	time.AfterFunc(leaveTime, leave)
}
