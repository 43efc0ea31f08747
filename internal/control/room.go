package control

import (
	"context"
	"net"
	"slices"
	"sync"
	"time"

	"hinit/client"
)

// mostUnsent is how many bytes of answers to one class of callers wait for clients that don't read.
const mostUnsent = 16 << 20

// readTime is how long a client may take to read its answer when another answer has no room.
const readTime = time.Second / 4

// room bounds the memory of answers to one class of callers: one answer is made at a time. Where it finds no room, clients that don't read
// theirs are cut off.
type room struct {
	turn   chan struct{} // has one place
	mu     sync.Mutex
	unsent int
	held   []*held // the oldest first
}

// held is an answer that waits for its client.
type held struct {
	bytes int
	since time.Time
	conn  net.Conn
}

func newRooms() (out [classes]*room) {
	for i := range out {
		out[i] = &room{turn: make(chan struct{}, 1)}
	}
	return out
}

// answer has an answer made when it is its turn, and keeps it until sent is called. A single answer may be larger than the room.
func (m *room) answer(ctx context.Context, build func() (reply, error)) (out reply, err error) {
	limit, cancel := context.WithTimeoutCause(ctx, lookLimit, errUnread)
	defer cancel()
	select {
	case m.turn <- struct{}{}: // also at the end of the limit
	default:
		select {
		case m.turn <- struct{}{}:
		case <-limit.Done():
			return out, ended(limit)
		}
	}
	defer func() { <-m.turn }()
	if out, err = build(); err == nil && out.body != nil {
		c, _ := ctx.Value(connKey{}).(net.Conn)
		out.sent, err = m.keep(limit, &held{len(out.body), time.Now(), c})
	}
	return out, err
}

var errUnread = refuse(client.KindBusy, "hinit is busy with other questions of this user; ask again")

// keep waits until there is room.
func (m *room) keep(ctx context.Context, h *held) (sent func(), err error) {
	for {
		m.mu.Lock()
		if m.unsent == 0 || m.unsent+h.bytes <= mostUnsent {
			m.unsent += h.bytes
			m.held = append(m.held, h)
			m.mu.Unlock()
			return func() { m.give(h) }, nil
		}
		oldest := m.held[0]
		m.mu.Unlock()
		if oldest.conn != nil && time.Since(oldest.since) > readTime {
			_ = oldest.conn.Close() // its reader learns of it by that
		}
		select {
		case <-time.After(readTime / 10):
		case <-ctx.Done():
			return nil, ended(ctx)
		}
	}
}

func (m *room) give(h *held) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.unsent -= h.bytes
	m.held = slices.DeleteFunc(m.held, func(o *held) bool { return o == h })
}

// inTurn has an answer that may be large made when there is room for it. build waits for nothing: others of the class wait for it.
func (s *Server) inTurn(r *request, build func() (reply, error)) (reply, error) {
	return s.rooms[s.policy.classOf(r.who)].answer(r.Context(), build)
}
