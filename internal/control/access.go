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
	"hinit/internal/trust"
)

// peer holds the credentials of a client at the time of its connection (unix(7), SO_PEERCRED). A user of another user namespace
// appears as the overflow user.
type peer struct {
	pid      int32
	uid      uint32
	isDenied bool        // the client belongs to an isolated profile that may not use the socket
	exited   func() bool // reports whether the client has exited, see isGone; nil if the kernel can't tell
}

// isGone reports whether the client's process has ended. Another process may then get the same PID. Call isGone after a look-up
// by PID: false means that the look-up was about the client.
func (p peer) isGone() bool { return p.exited != nil && p.exited() }

// fifoPID stands for the unknown PID of a client that wrote to the FIFO. The kernel doesn't report the PID of a writer.
const fifoPID = -1

type peerKey struct{}

type connKey struct{}

// authorOf returns the author of an order for the history: the client, and how the order came (command line, API, s6 or FIFO).
func authorOf(rt route, caller peer) *client.Author {
	if caller.pid == fifoPID {
		return &client.Author{UID: int(caller.uid), Origin: client.OriginFIFO}
	}
	by := &client.Author{UID: int(caller.uid), PID: int(caller.pid)}
	blocking.Run(blocking.ShortCalls, func() {
		name, inside := proc.NameAndOrigin(by.PID)
		switch {
		case caller.isGone():
			name, inside = "", true
		case name == "hinit-tools": // the command hinit executes hinit-tools
			name = "hinit"
		}
		by.Program, by.Origin = strings.ToValidUTF8(name, "?"), client.OriginExec
		if inside {
			by.Origin = client.OriginAPI
		}
	})
	if strings.Contains(rt.pattern, "/slots/") {
		by.Origin = client.OriginS6
	}
	return by
}

// access is the permission that a route requires of its client.
type access int

const (
	mayRead     access = iota // to read the status
	mayControl                // to change state, or to read more than the status
	mayReexec                 // to choose the next program of PID 1
	mayShutDown               // to end the container
)

// callerClass groups clients that have the same rights and share the same limits.
type callerClass int

const (
	rootClass callerClass = iota
	agentClass
	otherClass
	numClasses
)

// accessPolicy decides what each client of the control socket may do.
type accessPolicy struct {
	ownUID, agentUID uint32
	othersMayRead    bool // whether other users may read the status
	isDenied         func(pid int, uid uint32, gone func() bool) bool
}

func newPolicy(o Options) accessPolicy {
	return accessPolicy{ownUID: uint32(os.Geteuid()), agentUID: o.AgentUID, othersMayRead: o.OtherUsers == config.OthersMayReadStatus, isDenied: o.IsDenied}
}

// classOf returns the class of a client. An isolated process that may not use the socket has the rights of another user.
func (p accessPolicy) classOf(caller peer) callerClass {
	switch {
	case caller.isDenied:
		return otherClass
	case caller.uid == 0:
		return rootClass
	case caller.uid == p.ownUID, caller.uid == p.agentUID:
		return agentClass
	}
	return otherClass
}

// check returns nil if the client has the access that a route needs, and otherwise the error for the client.
func (p accessPolicy) check(caller peer, need access) *client.Error {
	if (need == mayReexec || need == mayShutDown) && caller.uid != 0 && (p.ownUID == 0 || caller.uid != p.ownUID) {
		what := "replace hinit"
		if need == mayShutDown {
			what = "end the container"
		}
		return newError(client.KindNotAllowed, "uid %d may not %s; root may", caller.uid, what)
	}
	if caller.isDenied {
		return newError(client.KindNotAllowed, "the isolation of this process keeps it from the control socket; to allow it, set isolation.control of its profile in hinit.yaml")
	}
	if p.classOf(caller) != otherClass || need == mayRead && p.othersMayRead {
		return nil
	}
	what := "control hinit"
	if need == mayRead {
		what = "read the status of hinit"
	}
	allowed := fmt.Sprintf("root and the agent's user (uid %d) may", p.agentUID)
	if p.ownUID != 0 && p.ownUID != p.agentUID {
		allowed = fmt.Sprintf("root, the agent's user (uid %d) and hinit's own (uid %d) may", p.agentUID, p.ownUID)
	}
	return newError(client.KindNotAllowed, "uid %d may not %s; %s", caller.uid, what, allowed)
}

// maxConns is the maximum number of connections for one class of clients. Each class has its own limit, so that no other user
// can lock root out.
const maxConns = 128

// fewFilesConnLimit replaces maxConns if PID 1 may open only few files. This number fits into the descriptors that PID 1
// reserves for itself (internal/tuning).
const fewFilesConnLimit = 16

// maxOpenConns returns fewFilesConnLimit if the limit of open files is low, and otherwise maxConns.
var maxOpenConns = sync.OnceValue(func() int32 {
	files := unix.Rlimit{Cur: 4096}
	_ = unix.Getrlimit(unix.RLIMIT_NOFILE, &files)
	return connLimitFor(files.Cur)
})

func connLimitFor(files uint64) int32 {
	if files < 4096 {
		return fewFilesConnLimit
	}
	return maxConns
}

func waitLimit() int32 { return maxOpenConns() / 4 * 3 }

// outsideConnDivisor limits the extra connections for clients from outside the container, such as probes of a pod, to
// maxOpenConns/outsideConnDivisor. Without extra connections, an agent could use up all connections, and the probes of its pod
// would fail.
const outsideConnDivisor = 8

// halfOpenTimeout is how long a refused connection stays half open, so that the client can read the error. At most maxOpenConns/4
// refused connections are half open at a time.
const halfOpenTimeout = 100 * time.Millisecond

// limitedListener is a listener that identifies its clients and limits their number by class.
type limitedListener struct {
	net.Listener
	policy accessPolicy
	counts *connCounts
}

// connCounts counts the connections and the waiting requests of each class of clients.
type connCounts struct {
	open     [numClasses]atomic.Int32
	waiting  [numClasses]atomic.Int32 // requests that wait without a time limit
	halfOpen atomic.Int32             // refused connections that are half open
	closing  sync.Mutex
}

// close closes connections one at a time, so that closing occupies at most one thread. It must not take a turn of
// internal/blocking: Close waits for a reader of the connection, and the reader may itself wait for a turn. Close can't block
// otherwise, because drain has removed the data of the client.
func (p *connCounts) close(c net.Conn) error {
	discardInput(c)
	p.closing.Lock()
	defer p.closing.Unlock()
	return c.Close()
}

// discardInput drops the data and the file descriptors that the client has sent, because they could block a close.
func discardInput(c net.Conn) {
	if raw, err := c.(syscall.Conn).SyscallConn(); err == nil {
		_ = raw.Control(blocking.DrainSocket)
	}
}

// conn is a connection with the credentials of its client. Its reads and writes take turns of internal/blocking, which limits
// the number of threads. Closing it frees its slot in connCounts.
type conn struct {
	net.Conn
	raw     syscall.RawConn
	peer    peer
	counts  *connCounts
	release func()
}

// Read implements net.Conn.
func (c *conn) Read(p []byte) (n int, err error) {
	if len(p) == 0 {
		return 0, nil
	}
	failed := c.raw.Read(func(fd uintptr) (done bool) {
		if len(p) == 1 {
			n, err = c.callLimited(pollHangUp, fd, p)
		} else {
			n, err = c.callLimited(unix.Read, fd, p)
		}
		return !errors.Is(err, unix.EAGAIN)
	})
	if failed == nil && err == nil && n == 0 {
		err = io.EOF
	}
	return n, cmp.Or(failed, withCallName("read", err))
}

// pollHangUp reports whether the client has hung up, without reading. net/http reads one byte during a handler to notice this,
// and Read calls pollHangUp instead. A real read could take a byte that came too early, and net/http would stop watching.
func pollHangUp(fd int, _ []byte) (int, error) {
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
			if n, err = c.callLimited(unix.Write, fd, p[sent:]); err != nil {
				return !errors.Is(err, unix.EAGAIN)
			}
			sent += n
		}
		return true
	})
	return sent, cmp.Or(failed, withCallName("write", err))
}

func withCallName(call string, err error) error {
	if errno := syscall.Errno(0); errors.As(err, &errno) {
		return &net.OpError{Op: call, Net: "unix", Err: os.NewSyscallError(call, err)}
	}
	return err
}

// callLimited makes a non-blocking system call in a turn of internal/blocking. Root has separate turns.
func (c *conn) callLimited(do func(fd int, p []byte) (int, error), fd uintptr, p []byte) (n int, err error) {
	turn := blocking.DoWithPeer
	if c.peer.uid == 0 {
		turn = func(f func() error) error { return blocking.Do(blocking.ShortCalls, f) }
	}
	err = turn(func() (err error) {
		n, err = trust.Retry(func() (int, error) { return do(int(fd), p) })
		return err
	})
	return max(n, 0), err
}

// Accept returns the next connection within the limits of its class. It refuses any other connection with an error, without
// reading a request.
func (g *limitedListener) Accept() (net.Conn, error) {
	for {
		c, err := g.Listener.Accept()
		if err != nil {
			return nil, err
		}
		cred, err := proc.PeerCredentials(c)
		var raw syscall.RawConn
		if err == nil {
			raw, err = c.(syscall.Conn).SyscallConn()
		}
		if err != nil {
			_ = g.counts.close(c) // without credentials, the client's rights are unknown
			continue
		}
		who := peer{pid: cred.Pid, uid: cred.Uid, exited: func() bool { return proc.PeerExited(c) }}
		who.isDenied = g.policy.isDenied(int(who.pid), who.uid, who.exited)
		n := &g.counts.open[g.policy.classOf(who)]
		if over := n.Add(1) - maxOpenConns(); over > 0 && (over > maxOpenConns()/outsideConnDivisor || !startedOutside(who)) {
			n.Add(-1)
			g.refuseConnection(c, who)
			continue
		}
		return &conn{Conn: c, raw: raw, peer: who, counts: g.counts, release: sync.OnceFunc(func() { n.Add(-1) })}, nil
	}
}

// startedOutside reports whether the client was started from outside the container, by docker exec or as the probe of a pod. A
// process of a service can't pretend that, because the kernel makes orphans of the service children of PID 1.
func startedOutside(caller peer) bool {
	inside := true
	blocking.Run(blocking.ShortCalls, func() { _, inside = proc.NameAndOrigin(int(caller.pid)) })
	return !inside && caller.pid > 0 && !caller.isGone()
}

// countWaiting counts a request without a time limit. It returns an error if its class has reached waitLimit.
func (s *Server) countWaiting(r *request) error {
	n := &s.connCounts.waiting[s.policy.classOf(r.client)]
	if n.Add(1) > waitLimit() {
		n.Add(-1)
		return newError(client.KindBusy,
			"users such as uid %d have %d calls waiting for something to happen, which is their limit; end some of them: s6-svwait, hinit events --follow", r.client.uid, waitLimit())
	}
	context.AfterFunc(r.Context(), func() { n.Add(-1) })
	return nil
}

// Close closes the connection, so that the client's class may open another.
func (c *conn) Close() error {
	c.release()
	return c.counts.close(c.Conn)
}

// refuseConnection sends an error and closes the connection. The error fits into the empty buffer of a new socket, so the write
// doesn't block. The connection stays half open for a moment, because curl would report an early close as a failed connection.
func (g *limitedListener) refuseConnection(c net.Conn, caller peer) {
	out := errorReply(newError(client.KindBusy, "users such as uid %d have %d connections to hinit open, which is their limit; end what keeps them open, or try again", caller.uid, maxOpenConns()))
	_ = c.SetWriteDeadline(time.Now().Add(time.Second))
	_, _ = fmt.Fprintf(c, "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s",
		out.status, http.StatusText(out.status), len(out.body), out.body)
	leave := func() {
		g.counts.halfOpen.Add(-1)
		_ = g.counts.close(c) // the answer has been written, or writing has failed
	}
	half, ok := c.(interface{ CloseWrite() error })
	if g.counts.halfOpen.Add(1) > maxOpenConns()/4 || !ok || half.CloseWrite() != nil {
		leave()
		return
	}
	time.AfterFunc(halfOpenTimeout, leave)
}

// maxUnreadBytes is the maximum total size of unread answers to clients of one class.
const maxUnreadBytes = 16 << 20

// maxUnreadTime is how long an answer may stay unread when another answer needs memory. Then the server cuts off the client.
const maxUnreadTime = time.Second / 4

// answerBudget limits the memory for unread answers to clients of one class. The server makes one answer at a time for each
// class. If the budget is full, the server cuts off the client with the oldest unread answer.
type answerBudget struct {
	makingAnswer chan struct{} // channel of capacity 1; it contains a token while a goroutine makes an answer
	mu           sync.Mutex
	unreadBytes  int
	unread       []*pendingAnswer // unread answers, oldest first
}

// pendingAnswer is an answer that the client has not read.
type pendingAnswer struct {
	bytes int
	since time.Time
	conn  net.Conn
}

func newAnswerBudgets() (out [numClasses]*answerBudget) {
	for i := range out {
		out[i] = &answerBudget{makingAnswer: make(chan struct{}, 1)}
	}
	return out
}

// makeAnswer calls build as soon as the server makes no other answer for this class of clients. The answer counts as unread
// until the caller calls the returned function sent. A single answer may be larger than the whole budget.
func (m *answerBudget) makeAnswer(ctx context.Context, build func() (reply, error)) (out reply, err error) {
	limit, cancel := context.WithTimeoutCause(ctx, readTimeLimit, errAnswerBudgetFull)
	defer cancel()
	select {
	case m.makingAnswer <- struct{}{}:
	default:
		if !pause.Send(limit, m.makingAnswer, struct{}{}) {
			return out, context.Cause(limit)
		}
	}
	defer func() { <-m.makingAnswer }()
	if out, err = build(); err == nil && out.body != nil {
		c, _ := ctx.Value(connKey{}).(net.Conn)
		out.onSent, err = m.reserve(limit, &pendingAnswer{len(out.body), time.Now(), c})
	}
	return out, err
}

var errAnswerBudgetFull = newError(client.KindBusy, "hinit is busy with other questions of this user; ask again")

// reserve waits until the answer h fits into the budget, and then counts it as unread until the caller calls sent.
func (m *answerBudget) reserve(ctx context.Context, h *pendingAnswer) (sent func(), err error) {
	for {
		m.mu.Lock()
		if m.unreadBytes == 0 || m.unreadBytes+h.bytes <= maxUnreadBytes {
			m.unreadBytes += h.bytes
			m.unread = append(m.unread, h)
			m.mu.Unlock()
			return func() { m.release(h) }, nil
		}
		oldest := m.unread[0]
		m.mu.Unlock()
		if oldest.conn != nil && time.Since(oldest.since) > maxUnreadTime {
			_ = oldest.conn.Close() // the slow client sees a closed connection
		}
		if !pause.For(ctx, maxUnreadTime/10) {
			return nil, context.Cause(ctx)
		}
	}
}

func (m *answerBudget) release(h *pendingAnswer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.unreadBytes -= h.bytes
	m.unread = slices.DeleteFunc(m.unread, func(o *pendingAnswer) bool { return o == h })
}

// makeAnswerLimited makes a possibly large answer. It waits until the server makes no other answer for this class of clients
// (root, the agent or others), and calls build. Then it waits until the answer fits into the budget of the class. build must not
// block, because all other answers for the class wait for it.
func (s *Server) makeAnswerLimited(r *request, build func() (reply, error)) (reply, error) {
	return s.answerBudgets[s.policy.classOf(r.client)].makeAnswer(r.Context(), build)
}
