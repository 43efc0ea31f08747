package notify

import (
	"strconv"
	"sync"
	"time"

	"hinit/internal/blocking"
	"hinit/internal/guard"
)

const (
	// datagramsPerPause is the maximum number of datagrams that a Hub reads from one service in each interval of the length pause. A
	// service that sends more blocks in sendmsg(2).
	datagramsPerPause = 64
	pause             = 250 * time.Millisecond
)

// Hub holds the sockets of all services. Its methods may be called from any goroutine.
type Hub struct {
	// handle is called with each message, the service whose socket received it, and the process that sent it. The calls for one
	// service do not overlap.
	handle func(service string, pid int, m Message)

	mu      sync.Mutex // never held during a call that may block
	sockets map[string]*socket
}

// New returns a hub without sockets. tell must not block for long.
func New(tell func(service string, pid int, m Message)) *Hub {
	return &Hub{handle: tell, sockets: make(map[string]*socket)}
}

// Listen creates a socket for a service below dir, and returns the socket's path. Only the given user and root may write to it.
// An existing socket for the same user is kept. Listen may wait for the disk of dir.
func (h *Hub) Listen(dir, service string, uid, gid uint32) (path string, err error) {
	if s := h.socketOf(service); s != nil && s.UID == uid && s.GID == gid {
		return s.Path, nil
	}
	s, err := blocking.Get(blocking.Runtime, func() (*socket, error) { return listen(dir, service, uid, gid) })
	if err != nil {
		return "", err
	}
	h.setSocket(service, s)
	h.startReader(service, s)
	return s.Path, nil
}

func (h *Hub) socketOf(service string) *socket {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.sockets[service]
}

// setSocket replaces the socket of a service by s, and closes the old socket. If s is nil, the service has no socket afterwards.
func (h *Hub) setSocket(service string, s *socket) {
	h.mu.Lock()
	old := h.sockets[service]
	if delete(h.sockets, service); s != nil {
		h.sockets[service] = s
	}
	h.mu.Unlock()
	if old != nil {
		if raw, err := old.File.SyscallConn(); err == nil {
			_ = raw.Control(blocking.Drain) // fails if the socket is closed
		}
		_ = old.File.Close() // ends the goroutine of the old socket
	}
}

// Drop closes the socket of a service, if there is one. The socket file stays, but nothing receives from it.
func (h *Hub) Drop(service string) { h.setSocket(service, nil) }

// Drain handles the unread messages from a service, at most datagramsPerPause of them.
func (h *Hub) Drain(service string) {
	if s := h.socketOf(service); s != nil {
		s.readBurst(func(pid int, m Message) { h.handle(service, pid, m) })
	}
}

// startReader starts the goroutine that handles the messages of a socket until it is closed.
func (h *Hub) startReader(service string, s *socket) {
	guard.Go("hearing what services say", func() {
		raw, err := s.File.SyscallConn()
		if err != nil {
			return // the socket is closed
		}
		for begin, taken := time.Now(), 0; ; {
			n := 0
			err := raw.Read(func(uintptr) bool { // a false result waits until the socket has data
				n = s.readBurst(func(pid int, m Message) { h.handle(service, pid, m) })
				return n > 0
			})
			if err != nil {
				return
			}
			if taken += n; taken >= datagramsPerPause {
				<-time.After(time.Until(begin.Add(pause)))
				begin, taken = time.Now(), 0
			}
		}
	})
}

// Handover is the state of a hub that a re-execution hands over to the next program of PID 1.
type Handover struct{ Sockets map[string]*socket }

// HandOver returns the sockets, which still hold all unread messages.
func (h *Hub) HandOver() *Handover {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := &Handover{Sockets: make(map[string]*socket, len(h.sockets))}
	for service, s := range h.sockets {
		out.Sockets[service] = &socket{File: s.File, Path: s.Path, UID: s.UID, GID: s.GID}
	}
	return out
}

// TakeOver makes a new hub continue with the sockets from the HandOver of an old hub; nil means no sockets.
func (h *Hub) TakeOver(old *Handover) {
	if old == nil {
		return
	}
	for service, s := range old.Sockets {
		if s == nil || s.File == nil {
			continue
		}
		h.setSocket(service, s)
		h.startReader(service, s)
	}
}

// Vars returns the names of the environment variables of the protocol. hinit must not pass on its own values to services, because
// their messages would then go to the program that started hinit.
func Vars() []string { return []string{SocketVar, WatchdogVar, "WATCHDOG_PID"} }

// The environment variables of a service that has a notification socket.
const (
	SocketVar   = "NOTIFY_SOCKET"
	WatchdogVar = "WATCHDOG_USEC"
)

// Environ returns the environment variables for a service with a socket at path. every is the watchdog interval. If every
// is 0, the watchdog variable is left out.
func Environ(path string, every time.Duration) map[string]string {
	env := map[string]string{SocketVar: path}
	if every > 0 {
		env[WatchdogVar] = strconv.FormatInt(every.Microseconds(), 10)
	}
	return env
}
