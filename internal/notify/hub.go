package notify

import (
	"strconv"
	"sync"
	"time"

	"hinit/internal/blocking"
	"hinit/internal/guard"
)

const (
	// burst is how many datagrams of a service are taken within a pause. One that sends more waits in its own sendmsg(2).
	burst = 64
	pause = 250 * time.Millisecond
)

// Hub has the sockets of all services. Its methods may be called from any goroutine.
type Hub struct {
	// tell gets what process pid says on the socket of a service. The calls of one service come one after the other.
	tell func(service string, pid int, m Message)

	mu      sync.Mutex // never held while anything waits
	sockets map[string]*socket
}

// New returns a hub without sockets. tell must not block for long.
func New(tell func(service string, pid int, m Message)) *Hub {
	return &Hub{tell: tell, sockets: make(map[string]*socket)}
}

// Listen gives a service a socket below dir, which a user may write to, and returns its path. One that it has already stays. It may wait for the
// disk of dir.
func (h *Hub) Listen(dir, service string, uid, gid uint32) (path string, err error) {
	if s := h.of(service); s != nil && s.UID == uid && s.GID == gid {
		return s.Path, nil
	}
	var s *socket
	err = blocking.Do(blocking.Runtime, func() (err error) {
		s, err = listen(dir, service, uid, gid)
		return err
	})
	if err != nil {
		return "", err
	}
	h.put(service, s)
	h.serve(service, s)
	return s.Path, nil
}

func (h *Hub) of(service string) *socket {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.sockets[service]
}

// put sets the socket of a service, nil for none.
func (h *Hub) put(service string, s *socket) {
	h.mu.Lock()
	old := h.sockets[service]
	if delete(h.sockets, service); s != nil {
		h.sockets[service] = s
	}
	h.mu.Unlock()
	if old != nil {
		if raw, err := old.File.SyscallConn(); err == nil {
			_ = raw.Control(blocking.Drain) // it fails where the socket is closed
		}
		_ = old.File.Close() // it ends its goroutine
	}
}

// Drop closes the socket of a service, if it has one. Its name stays without a listener.
func (h *Hub) Drop(service string) { h.put(service, nil) }

// Drain takes what a service has said until now, as far as one burst goes.
func (h *Hub) Drain(service string) {
	if s := h.of(service); s != nil {
		s.take(func(pid int, m Message) { h.tell(service, pid, m) })
	}
}

// serve takes what comes until the socket is closed.
func (h *Hub) serve(service string, s *socket) {
	guard.Go("hearing what services say", func() {
		raw, err := s.File.SyscallConn()
		if err != nil {
			return // it is closed
		}
		for begin, taken := time.Now(), 0; ; {
			n := 0
			err := raw.Read(func(uintptr) bool { // it waits where nothing was taken
				n = s.take(func(pid int, m Message) { h.tell(service, pid, m) })
				return n > 0
			})
			if err != nil {
				return
			}
			if taken += n; taken >= burst {
				<-time.After(time.Until(begin.Add(pause)))
				begin, taken = time.Now(), 0
			}
		}
	})
}

// Handover is what a hub tells its successor in another image of this process.
type Handover struct{ Sockets map[string]*socket }

// HandOver returns the sockets with all that is still in them, nil where there are none.
func (h *Hub) HandOver() *Handover {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.sockets) == 0 {
		return nil
	}
	out := &Handover{Sockets: make(map[string]*socket, len(h.sockets))}
	for service, s := range h.sockets {
		out.Sockets[service] = &socket{File: s.File, Path: s.Path, UID: s.UID, GID: s.GID}
	}
	return out
}

// TakeOver makes a new hub the successor of another one; nil stands for a hub without sockets.
func (h *Hub) TakeOver(old *Handover) {
	if old == nil {
		return
	}
	for service, s := range old.Sockets {
		if s == nil || s.File == nil {
			continue
		}
		h.put(service, s)
		h.serve(service, s)
	}
}

// Vars are the variables of the protocol, which no service is to have from whoever started hinit: it would speak to that process.
func Vars() []string { return []string{SocketVar, WatchdogVar, "WATCHDOG_PID"} }

// The variables that a service gets.
const (
	SocketVar   = "NOTIFY_SOCKET"
	WatchdogVar = "WATCHDOG_USEC"
)

// Environ returns what a service gets that has a socket, and a watchdog if every is above zero.
func Environ(path string, every time.Duration) map[string]string {
	env := map[string]string{SocketVar: path}
	if every > 0 {
		env[WatchdogVar] = strconv.FormatInt(every.Microseconds(), 10)
	}
	return env
}
