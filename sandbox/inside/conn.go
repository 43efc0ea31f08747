package inside

import (
	"context"
	"io"
	"sync"
	"syscall"
	"time"

	"hinit/internal/guard"
	"hinit/sandbox/mux"
)

// conn is one client.
type conn struct {
	server *server
	w      *mux.Writer

	mu       sync.Mutex
	channels map[uint32]*channel
	left     bool
}

// channel is one request of a client. Its own goroutine serves it; the connection's hands it what comes.
type channel struct {
	*mux.Served
	c    *conn
	open mux.Open

	mu    sync.Mutex
	run   *run // nil while there is none
	tty   *terminal
	grace time.Duration   // of its end
	ctx   context.Context //nolint:containedctx // it ends when the channel is to end: no run may begin any more, or the one there is ends
	end   context.CancelFunc
}

// read takes what the client sends until it sends nothing more, or nonsense.
func (c *conn) read(r *mux.Reader) {
	gather := new(mux.Gather)
	for {
		f, err := r.Next()
		if err != nil || !c.take(f, gather) {
			return
		}
	}
}

// take takes one frame. It returns false for one that breaks the protocol.
func (c *conn) take(f mux.Frame, gather *mux.Gather) bool {
	switch f.Kind {
	case mux.KindPing:
		return c.w.Write(mux.KindPong, 0, nil) == nil
	case mux.KindOpen:
		var open mux.Open
		whole, err := gather.Add(f, &open)
		if err != nil {
			return false
		}
		return !whole || c.begin(f.Channel, open)
	default:
	}
	c.mu.Lock()
	ch := c.channels[f.Channel]
	c.mu.Unlock()
	if ch == nil {
		return true // it has just ended, and the client doesn't know yet
	}
	return ch.take(f)
}

func (c *conn) begin(id uint32, open mux.Open) bool {
	ch := &channel{Served: mux.NewServed(c.w, id), c: c, open: open}
	ch.ctx, ch.end = context.WithCancel(context.Background())
	c.mu.Lock()
	if c.channels[id] != nil || len(c.channels) >= mux.MaxChannels {
		c.mu.Unlock()
		return false
	}
	c.channels[id] = ch
	c.mu.Unlock()
	guard.Go("serving a command", func() {
		end := ch.serve()
		ch.Input.End(io.EOF)
		ch.end()
		c.mu.Lock()
		delete(c.channels, id)
		c.mu.Unlock()
		_ = ch.Finish(end) // a client that is gone needs no answer
	})
	return true
}

// leave ends what the client has in the foreground.
func (c *conn) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left = true
	for _, ch := range c.channels {
		ch.cancel(milliseconds(ch.open.Grace))
		ch.Leave()
	}
}

func (ch *channel) take(f mux.Frame) bool {
	switch f.Kind {
	case mux.KindSignal:
		n, err := mux.ParseNumber(f.Data)
		if err != nil || n < 1 || n > 64 {
			return false
		}
		ch.mu.Lock()
		defer ch.mu.Unlock()
		if ch.run != nil {
			ch.c.server.loop.signal(ch.run, syscall.Signal(n))
		}
		return true
	case mux.KindResize:
		columns, rows, err := mux.ParseSize(f.Data)
		if err != nil {
			return false
		}
		ch.mu.Lock()
		defer ch.mu.Unlock()
		if ch.tty != nil {
			ch.tty.resize(columns, rows)
		}
		return true
	case mux.KindKill:
		n, err := mux.ParseNumber(f.Data)
		if err != nil {
			return false
		}
		ch.cancel(time.Duration(n) * time.Millisecond)
		return true
	default:
		return ch.Take(f)
	}
}

// cancel ends what the channel runs, and keeps anything else from beginning.
func (ch *channel) cancel(grace time.Duration) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.end()
	ch.grace = grace
	ch.Input.End(io.ErrUnexpectedEOF)
	if ch.run != nil {
		ch.c.server.loop.end(ch.run, grace)
	}
	if ch.open.Op != mux.OpRun {
		ch.Output.Close()
	}
}

// began notes the channel's run. One that was cancelled meanwhile ends.
func (ch *channel) began(r *run) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.run = r
	if ch.ctx.Err() != nil {
		ch.c.server.loop.end(r, ch.grace)
	}
}

func milliseconds(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

func bad(text string) mux.End { return mux.End{Fault: mux.BadOpen, Text: text} }

// serve does what the channel is for and returns how it ended.
func (ch *channel) serve() mux.End {
	s := ch.c.server
	if ch.open.Timeout < 0 || ch.open.Grace < 0 {
		return bad("a negative time")
	}
	switch ch.open.Op {
	case mux.OpRun:
		return ch.foreground()
	case mux.OpStart:
		return s.jobs.start(ch)
	case mux.OpJobs:
		return mux.End{Jobs: s.jobs.list(), Clients: int(s.clients.Load())}
	case mux.OpOutput:
		return s.jobs.output(ch)
	case mux.OpKill:
		return s.jobs.kill(ch)
	case mux.OpBury:
		s.loop.do(func() { s.loop.table.KillSession(ch.open.PID, s.began) })
		return mux.End{}
	case mux.OpPutTree:
		return ch.putTree()
	case mux.OpGetTree:
		return ch.getTree()
	}
	return bad("unknown operation " + string(ch.open.Op))
}
