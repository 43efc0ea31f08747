package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/internal/blocking"
	"hinit/internal/config"
	"hinit/internal/pause"
	"hinit/internal/proc"
)

// peer holds the credentials of a client at the time of its connection (unix(7), SO_PEERCRED). A user of another user namespace
// appears as the overflow user.
type peer struct {
	pid     int32
	uid     uint32
	shutOut bool        // the process belongs to an isolated profile and may not use the socket
	gone    func() bool // see isGone; nil if the kernel does not name the process
}

// isGone reports whether the peer's process has ended. Its PID may then belong to another process. So call isGone after a look-up by
// the PID: the result false proves that the look-up was about the peer.
func (who peer) isGone() bool { return who.gone != nil && who.gone() }

// fifoPID is the pid of a peer that wrote to the FIFO. The kernel does not tell who writes to a FIFO.
const fifoPID = -1

type peerKey struct{}

// connKey is the context key of a request's connection.
type connKey struct{}

// authorOf returns the author of an order, for the history: the client, and how its request arrived: by the
// command line, the API, s6 or the FIFO.
func authorOf(rt route, who peer) *client.By {
	if who.pid == fifoPID {
		return &client.By{UID: int(who.uid), Way: client.WayFIFO}
	}
	by := &client.By{UID: int(who.uid), PID: int(who.pid)}
	blocking.Run(blocking.Short, func() {
		name, inside := proc.NameAndOrigin(by.PID)
		switch {
		case who.isGone():
			name, inside = "", true
		case name == "hinit-tools": // the command hinit runs this program
			name = "hinit"
		}
		by.Program, by.Way = strings.ToValidUTF8(name, "?"), client.WayExec
		if inside {
			by.Way = client.WayAPI
		}
	})
	if strings.Contains(rt.pattern, "/slots/") {
		by.Way = client.WayS6
	}
	return by
}

// access is the permission that a client needs to use a route.
type access int

const (
	mayRead    access = iota // the client reads the status
	mayControl               // the client changes something, or reads more than the status
	mayReplace               // the client decides which program PID 1 becomes
	mayEnd                   // the client ends the container
)

// class is a class of callers with the same rights and limits.
type class int

const (
	rootClass class = iota
	agentClass
	otherClass
	classes
)

type policy struct {
	self, agent uint32
	others      bool // whether other users may read the status
	shutOut     func(pid int, uid uint32, gone func() bool) bool
}

func newPolicy(o Options) policy {
	return policy{self: uint32(os.Geteuid()), agent: o.AgentUID, others: o.Others == config.OthersStatus, shutOut: o.Denies}
}

func (p policy) classOf(who peer) class {
	switch {
	case who.shutOut:
		return otherClass
	case who.uid == 0:
		return rootClass
	case who.uid == p.self, who.uid == p.agent:
		return agentClass
	}
	return otherClass
}

// check returns nil if a peer has the permission need, and otherwise the error for the client.
func (p policy) check(who peer, need access) *client.Error {
	if (need == mayReplace || need == mayEnd) && who.uid != 0 && (p.self == 0 || who.uid != p.self) {
		what := "replace hinit"
		if need == mayEnd {
			what = "end the container"
		}
		return refuse(client.KindNotAllowed, "uid %d may not %s; root may", who.uid, what)
	}
	if who.shutOut {
		return refuse(client.KindNotAllowed, "the isolation of this process keeps it from the control socket; to allow it, set isolation.control of its profile in hinit.yaml")
	}
	if p.classOf(who) != otherClass || need == mayRead && p.others {
		return nil
	}
	what := "control hinit"
	if need == mayRead {
		what = "read the status of hinit"
	}
	allowed := fmt.Sprintf("root and the agent's user (uid %d) may", p.agent)
	if p.self != 0 && p.self != p.agent {
		allowed = fmt.Sprintf("root, the agent's user (uid %d) and hinit's own (uid %d) may", p.agent, p.self)
	}
	return refuse(client.KindNotAllowed, "uid %d may not %s; %s", who.uid, what, allowed)
}

// maxConns is the maximum number of connections for each class of callers. The limit is per class, so that neither the agent nor
// another user can lock root out.
const maxConns = 128

// fewConns replaces maxConns if the limit of open files for PID 1 is low. The connections of all classes together then fit into
// the descriptors that PID 1 reserves for itself (internal/tuning).
const fewConns = 16

// connLimit returns the maximum number of connections per class: maxConns, or fewConns if the limit of open files for PID 1
// is low.
var connLimit = sync.OnceValue(func() int32 {
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

// waitLimit returns the maximum number of connections of a class that may wait without a time limit. The other connections stay
// free for short requests.
func waitLimit() int32 { return connLimit() / 4 * 3 }

// reserve determines the number of extra connections for processes from outside of the container, such as the probes of a pod:
// connLimit divided by reserve. Otherwise, an agent that opens all connections of its user could make its pod count as not ready.
const reserve = 8

// leaveTime is the time that a refused connection stays half open. At most a quarter of connLimit may be half open at the same
// time.
const leaveTime = 100 * time.Millisecond

// limitedListener is a listener that identifies its clients and limits their number.
type limitedListener struct {
	net.Listener
	policy policy
	places *connCounts
}

// connCounts counts the connections and the waiting requests of a server, for each class of callers.
type connCounts struct {
	taken   [classes]atomic.Int32
	waits   [classes]atomic.Int32 // requests on these connections that wait without a time limit
	leaving atomic.Int32          // refused connections that are still half open
	closing sync.Mutex            // held during a close
}

// close closes connections one at a time, to save threads. It does not wait for a turn of internal/blocking. Package net
// makes a close wait for a reader of the connection, and that reader may itself wait for a turn. The close can't block for
// another reason, because Drain has already taken the data that the peer sent.
func (p *connCounts) close(c net.Conn) error {
	if raw, err := c.(syscall.Conn).SyscallConn(); err == nil { // every socket has a raw connection
		_ = raw.Control(blocking.Drain) // fails only on a closed connection
	}
	p.closing.Lock()
	defer p.closing.Unlock()
	return c.Close()
}

// conn is a connection with the credentials of its peer. Close frees the connection's place in the counts of its class.
// Package internal/blocking limits how many reads and writes run at the same time, to limit the number of threads.
type conn struct {
	net.Conn
	raw     syscall.RawConn
	peer    peer
	places  *connCounts
	release func()
}

// Read implements net.Conn.
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
	return n, cmp.Or(failed, withCallName("read", err))
}

// hungUp replaces a read of net/http. While a handler runs, net/http reads one byte to notice that the client is gone. hungUp
// only polls the connection. A real read could take a byte that the client sent too early, and net/http would then stop watching.
func hungUp(fd int, _ []byte) (int, error) {
	ask := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
	if n, err := unix.Poll(ask, 0); n > 0 || err != nil {
		return 0, err
	}
	return 0, unix.EAGAIN
}

// Write implements net.Conn.
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
	return sent, cmp.Or(failed, withCallName("write", err))
}

// withCallName adds the name of a system call to the call's error.
func withCallName(call string, err error) error {
	if errno := syscall.Errno(0); errors.As(err, &errno) {
		return &net.OpError{Op: call, Net: "unix", Err: os.NewSyscallError(call, err)}
	}
	return err
}

// call makes a system call that does not block, under the limits of internal/blocking. Calls for root and calls for other
// users have separate limits.
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

// Accept returns the next connection for which there is a place. To any other connection it sends an error without reading the
// request, and closes it.
func (g *limitedListener) Accept() (net.Conn, error) {
	for {
		c, err := g.Listener.Accept()
		if err != nil {
			return nil, err
		}
		cred, err := proc.Peer(c)
		var raw syscall.RawConn
		if err == nil {
			raw, err = c.(syscall.Conn).SyscallConn() // every socket has a raw connection
		}
		if err != nil {
			_ = g.places.close(c) // a client without credentials
			continue
		}
		who := peer{pid: cred.Pid, uid: cred.Uid, gone: func() bool { return proc.PeerGone(c) }}
		who.shutOut = g.policy.shutOut(int(who.pid), who.uid, who.gone)
		n := &g.places.taken[g.policy.classOf(who)]
		if over := n.Add(1) - connLimit(); over > 0 && (over > connLimit()/reserve || !fromOutside(who)) {
			n.Add(-1)
			g.refuseConnection(c, who)
			continue
		}
		return &conn{Conn: c, raw: raw, peer: who, places: g.places, release: sync.OnceFunc(func() { n.Add(-1) })}, nil
	}
}

// fromOutside reports whether a client was started from outside of the container, for example by docker exec or as a probe of a
// pod. No process of a service can become such a client, because the kernel makes its orphans children of PID 1.
func fromOutside(who peer) bool {
	inside := true
	blocking.Run(blocking.Short, func() { _, inside = proc.NameAndOrigin(int(who.pid)) })
	return !inside && who.pid > 0 && !who.isGone()
}

// wait takes one of the places for requests that wait without a time limit. release frees the place.
func (s *Server) wait(who peer) (release func(), err error) {
	n := &s.places.waits[s.policy.classOf(who)]
	if n.Add(1) > waitLimit() {
		n.Add(-1)
		return nil, refuse(client.KindBusy,
			"users such as uid %d have %d calls waiting for something to happen, which is their limit; end some of them: s6-svwait, hinit events --follow", who.uid, waitLimit())
	}
	return func() { n.Add(-1) }, nil
}

// Close closes the connection, and frees its place in the counts of its class of callers.
func (c *conn) Close() error {
	c.release()
	return c.places.close(c.Conn)
}

// refuseConnection sends an error to a client and closes its connection. The answer fits into the empty buffer of a new socket,
// so the write does not block; the deadline is only a precaution. The connection stays half open for a moment, because curl
// reports an early close as a failed connection.
func (g *limitedListener) refuseConnection(c net.Conn, who peer) {
	out := failure(refuse(client.KindBusy, "users such as uid %d have %d connections to hinit open, which is their limit; end what keeps them open, or try again", who.uid, connLimit()))
	_ = c.SetWriteDeadline(time.Now().Add(time.Second))
	_, _ = fmt.Fprintf(c, "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s",
		out.status, http.StatusText(out.status), len(out.body), out.body)
	leave := func() {
		g.places.leaving.Add(-1)
		_ = g.places.close(c) // the answer has been written, or the write has failed
	}
	half, ok := c.(interface{ CloseWrite() error })
	if g.places.leaving.Add(1) > connLimit()/4 || !ok || half.CloseWrite() != nil {
		leave()
		return
	}
	time.AfterFunc(leaveTime, leave)
}

// maxUnsentBytes is the maximum size of the answers to one class of callers that the clients have not read yet, in bytes.
const maxUnsentBytes = 16 << 20

// readTime is the time that a client may leave an answer unread while another answer of its class waits for room.
const readTime = time.Second / 4

// answerBudget limits the memory for the unread answers to one class of callers. Answers are made one at a time. If there is no
// room for an answer, answerBudget cuts off a client that does not read.
type answerBudget struct {
	turn   chan struct{} // capacity 1; holds a token while an answer is made
	mu     sync.Mutex
	unsent int
	unread []*unreadAnswer // oldest first
}

// unreadAnswer is an answer that its client has not read yet.
type unreadAnswer struct {
	bytes int
	since time.Time
	conn  net.Conn
}

func newAnswerBudgets() (out [classes]*answerBudget) {
	for i := range out {
		out[i] = &answerBudget{turn: make(chan struct{}, 1)}
	}
	return out
}

// answer waits until no other answer to this class of callers is being made, and then calls build. The answer occupies memory in
// the budget until its function sent is called. A single answer may exceed the budget.
func (m *answerBudget) answer(ctx context.Context, build func() (reply, error)) (out reply, err error) {
	limit, cancel := context.WithTimeoutCause(ctx, readLimit, errUnread)
	defer cancel()
	select {
	case m.turn <- struct{}{}: // tried first, so that a request gets a free turn even after the time limit
	default:
		if !pause.Send(limit, m.turn, struct{}{}) {
			return out, context.Cause(limit)
		}
	}
	defer func() { <-m.turn }()
	if out, err = build(); err == nil && out.body != nil {
		c, _ := ctx.Value(connKey{}).(net.Conn)
		out.sent, err = m.reserve(limit, &unreadAnswer{len(out.body), time.Now(), c})
	}
	return out, err
}

var errUnread = refuse(client.KindBusy, "hinit is busy with other questions of this user; ask again")

// reserve waits until there is room for an answer, and reserves this room until sent is called.
func (m *answerBudget) reserve(ctx context.Context, h *unreadAnswer) (sent func(), err error) {
	for {
		m.mu.Lock()
		if m.unsent == 0 || m.unsent+h.bytes <= maxUnsentBytes {
			m.unsent += h.bytes
			m.unread = append(m.unread, h)
			m.mu.Unlock()
			return func() { m.free(h) }, nil
		}
		oldest := m.unread[0]
		m.mu.Unlock()
		if oldest.conn != nil && time.Since(oldest.since) > readTime {
			_ = oldest.conn.Close() // the slow client sees a closed connection
		}
		if !pause.For(ctx, readTime/10) {
			return nil, context.Cause(ctx)
		}
	}
}

func (m *answerBudget) free(h *unreadAnswer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.unsent -= h.bytes
	m.unread = slices.DeleteFunc(m.unread, func(o *unreadAnswer) bool { return o == h })
}

// inTurn makes an answer that may be large. It waits until no other answer to the client's class is being made, and the budget
// has room. build must not block, because the other requests of the same class wait for it.
func (s *Server) inTurn(r *request, build func() (reply, error)) (reply, error) {
	return s.answerBudgets[s.policy.classOf(r.who)].answer(r.Context(), build)
}
