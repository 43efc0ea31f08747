package inside

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"hinit/internal/guard"
	"hinit/internal/pty"
	"hinit/sandbox/archive"
	"hinit/sandbox/mux"
)

// channel handles one request of a client. Each channel is served by a separate goroutine. The connection's goroutine calls
// resize and cancel.
type channel struct {
	*mux.Channel
	server  *server
	request mux.Open

	mu    sync.Mutex
	run   *run            // nil while no command is running
	tty   *os.File        // the terminal of the run
	grace time.Duration   // the grace period for ending the run
	ctx   context.Context //nolint:containedctx // done when the channel must end: then its run is ended, and a new one can't begin
	end   context.CancelFunc
}

func (s *server) acceptRequest(served *mux.Channel, open mux.Open) {
	ch := &channel{Channel: served, server: s, request: open}
	ch.ctx, ch.end = context.WithCancel(context.Background())
	ch.Resize, ch.Kill = ch.resize, ch.cancel
	guard.Go("serving a command", func() {
		end := ch.serve()
		ch.end()
		_ = ch.Finish(end) // an error only means that the client is gone
	})
}

func (ch *channel) resize(columns, rows uint16) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.tty != nil {
		pty.Resize(ch.tty, columns, rows)
	}
}

// cancel ends the channel's run, and prevents the start of a later run.
func (ch *channel) cancel(grace time.Duration) {
	if grace < 0 {
		grace = milliseconds(ch.request.Grace)
	}
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.end()
	ch.grace = grace
	ch.Input.End(io.ErrUnexpectedEOF)
	if ch.run != nil {
		ch.server.loop.endTree(ch.run, grace, nil)
	}
	if ch.request.Op != mux.OpRun {
		ch.Output.End(nil)
	}
}

// began stores the run that was started for the channel. If the channel was canceled during the start, began ends the run.
func (ch *channel) began(r *run) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.run = r
	if ch.ctx.Err() != nil {
		ch.server.loop.endTree(r, ch.grace, nil)
	}
}

func milliseconds(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

func badOpen(text string) *mux.End { return &mux.End{Fault: mux.BadOpen, Text: text} }

// serve performs the channel's request and returns how it ended.
func (ch *channel) serve() mux.End {
	s := ch.server
	if ch.request.Timeout < 0 || ch.request.Grace < 0 {
		return *badOpen("a negative time")
	}
	switch ch.request.Op {
	case mux.OpRun:
		return ch.runForeground()
	case mux.OpStart:
		return s.jobs.start(ch)
	case mux.OpJobs:
		return mux.End{Jobs: s.jobs.list(), Clients: int(s.clients.Load())}
	case mux.OpOutput:
		return s.jobs.withJob(ch, ch.sendOutput)
	case mux.OpKill:
		return s.jobs.withJob(ch, ch.kill)
	case mux.OpKillLeftovers:
		s.loop.call(func() { s.loop.killSession(ch.request.PID, s.began) })
		return mux.End{}
	case mux.OpPutTree:
		return fileEnd(archive.Unpack(ch.Input, ch.request.Path))
	case mux.OpGetTree: // the names in the archive begin with the last element of the path
		top := filepath.Clean(ch.request.Path)
		return fileEnd(archive.Pack(ch.Output, top, filepath.Base(top)))
	}
	return *badOpen("unknown operation " + string(ch.request.Op))
}

func fileEnd(err error) mux.End {
	if err != nil {
		return mux.End{Fault: mux.FileFault, Code: 1, Text: err.Error()}
	}
	return mux.End{}
}
