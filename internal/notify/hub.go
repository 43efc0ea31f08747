package notify

import (
	"strconv"
	"sync"
	"time"

	"hinit/internal/blocking"
	"hinit/internal/guard"
)

const (
	// datagramsPerInterval is how many datagrams of one service a Hub reads per interval. If a service sends faster, its
	// sendmsg(2) blocks.
	datagramsPerInterval = 64
	readInterval         = 250 * time.Millisecond
)

// Hub holds the notification sockets of all services. Any goroutine may call its methods.
type Hub struct {
	// handles each message, with its service and the process that sent it. Calls for one service do not overlap.
	onMessage func(service string, pid int, m Message)

	mu      sync.Mutex // no goroutine holds mu during a call that may block
	sockets map[string]*socket
}

// New returns a Hub without sockets. onMessage receives each message, with the service and the process that sent it. It must
// not block for long.
func New(onMessage func(service string, pid int, m Message)) *Hub {
	return &Hub{onMessage: onMessage, sockets: make(map[string]*socket)}
}

// Listen makes the socket of a service below dir, and returns its path. Only the given user and root can write to it. An
// existing socket of the same user is kept. Listen may wait for the disk of dir.
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

// setSocket replaces the socket of a service, and closes the old one. A nil socket only closes the old one.
func (h *Hub) setSocket(service string, s *socket) {
	h.mu.Lock()
	old := h.sockets[service]
	delete(h.sockets, service)
	if s != nil {
		h.sockets[service] = s
	}
	h.mu.Unlock()
	if old != nil {
		if raw, err := old.File.SyscallConn(); err == nil {
			_ = raw.Control(blocking.DrainSocket) // Control fails if the socket is closed
		}
		_ = old.File.Close() // this close ends the goroutine of the old socket
	}
}

// CloseSocket closes the socket of a service. Its file stays, but no goroutine receives from it.
func (h *Hub) CloseSocket(service string) { h.setSocket(service, nil) }

// Drain handles the messages of a service that have already arrived, at most datagramsPerInterval.
func (h *Hub) Drain(service string) {
	if s := h.socketOf(service); s != nil {
		s.readBurst(func(pid int, m Message) { h.onMessage(service, pid, m) })
	}
}

// startReader starts the goroutine that handles the messages of a socket until the socket is closed.
func (h *Hub) startReader(service string, s *socket) {
	guard.Go("hearing what services say", func() {
		raw, err := s.File.SyscallConn()
		if err != nil {
			return // the socket is closed
		}
		begin, taken := time.Now(), 0
		for {
			n := 0
			err := raw.Read(func(uintptr) bool { // with the result false, Read waits until the socket has data
				n = s.readBurst(func(pid int, m Message) { h.onMessage(service, pid, m) })
				return n > 0
			})
			if err != nil {
				return
			}
			taken += n
			if taken >= datagramsPerInterval {
				<-time.After(time.Until(begin.Add(readInterval)))
				begin, taken = time.Now(), 0
			}
		}
	})
}

// Handover is the state of a Hub for the next program of a re-execution.
type Handover struct{ Sockets map[string]*socket }

// HandOver returns the sockets. Unread messages stay in them.
func (h *Hub) HandOver() *Handover {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := &Handover{Sockets: make(map[string]*socket, len(h.sockets))}
	// hand over a copy with its own lock, because the reader in this program may hold the lock
	for service, s := range h.sockets {
		out.Sockets[service] = &socket{File: s.File, Path: s.Path, UID: s.UID, GID: s.GID}
	}
	return out
}

// TakeOver makes a new Hub continue with the sockets of an old one; nil means none.
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

// VarNames returns the names of the protocol's variables. hinit does not pass its own values to services, because their
// messages would then go to the program that started hinit.
func VarNames() []string { return []string{SocketVar, WatchdogVar, "WATCHDOG_PID"} }

// Variables of a service with a notification socket.
const (
	SocketVar   = "NOTIFY_SOCKET"
	WatchdogVar = "WATCHDOG_USEC"
)

// Environ returns the variables of a service whose socket is at path. every is the watchdog interval; 0 for no watchdog.
func Environ(path string, every time.Duration) map[string]string {
	env := map[string]string{SocketVar: path}
	if every > 0 {
		env[WatchdogVar] = strconv.FormatInt(every.Microseconds(), 10)
	}
	return env
}
