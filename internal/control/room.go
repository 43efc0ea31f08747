package control

import (
	"context"
	"sync"
	"time"

	"hinit/client"
)

// mostUnsent is how many bytes of answers to one class of callers wait for clients that don't read.
const mostUnsent = 16 << 20

// room bounds the memory of answers to one class of callers: one answer is made at a time, and it waits until there is room for it.
type room struct {
	turn   chan struct{} // has one place
	mu     sync.Mutex
	unsent int
	freed  chan struct{} // closed when bytes have left
}

func newRooms() (out [classes]*room) {
	for i := range out {
		out[i] = &room{turn: make(chan struct{}, 1), freed: make(chan struct{})}
	}
	return out
}

// enter takes the turn to make an answer.
func (m *room) enter(ctx context.Context) error {
	limit := time.NewTimer(lookLimit)
	defer limit.Stop()
	select {
	case m.turn <- struct{}{}:
		return nil
	case <-limit.C:
	case <-ctx.Done():
	}
	return errUnread
}

func (m *room) leave() { <-m.turn }

var errUnread = refuse(client.KindBusy, "others of this user don't read the answers that they have asked for; ask again")

// keep waits until there is room for so many bytes, and takes it until sent is called. A single answer may be larger than the room.
func (m *room) keep(ctx context.Context, n int) (sent func(), err error) {
	limit := time.NewTimer(lookLimit)
	defer limit.Stop()
	for {
		m.mu.Lock()
		if m.unsent == 0 || m.unsent+n <= mostUnsent {
			m.unsent += n
			m.mu.Unlock()
			return func() { m.give(n) }, nil
		}
		freed := m.freed
		m.mu.Unlock()
		select {
		case <-freed:
		case <-limit.C:
			return nil, errUnread
		case <-ctx.Done():
			return nil, errUnread
		}
	}
}

func (m *room) give(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.unsent -= n
	close(m.freed)
	m.freed = make(chan struct{})
}

// inTurn has an answer about everything made when there is room for it. What is asked by name may wait for the boot, and takes no turn.
func inTurn(handle func(*Server, *request) (reply, error)) func(*Server, *request) (reply, error) {
	return func(s *Server, r *request) (reply, error) {
		if r.URL.Query().Has("name") {
			return handle(s, r)
		}
		m := s.rooms[s.policy.classOf(r.who)]
		if err := m.enter(r.Context()); err != nil {
			return reply{}, err
		}
		defer m.leave()
		out, err := handle(s, r)
		if err == nil {
			out.sent, err = m.keep(r.Context(), len(out.body))
		}
		return out, err
	}
}
