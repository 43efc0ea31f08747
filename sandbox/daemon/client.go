package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/pause"
	"hinit/sandbox/mux"
)

// ErrNone is wrapped by the error of [Dial] where no service ever listened.
var ErrNone = errors.New("there is no service of sandboxes")

// ErrLost is wrapped by the error of [Conn.Run] when the service has gone while the command ran.
var ErrLost = errors.New("the service of sandboxes went away while the command ran")

// dialTime is how long a service may be away: long enough for hinit to start it again, and less than the agent's patience with
// docker version.
const (
	dialTime  = 4 * time.Second
	dialPause = 50 * time.Millisecond
)

// Conn is a connection to the service, for one request.
type Conn struct{ c net.Conn }

// Dial connects to the service. It waits for one that is being started again, and refuses to talk to a socket of another user than root
// or this one.
func Dial(ctx context.Context, socket string) (*Conn, error) {
	if _, err := os.Stat(socket); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("cannot reach %s: %w", socket, ErrNone)
	}
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	for {
		c, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
		if err == nil {
			owner, err := mux.Peer(c)
			if err == nil && owner.Uid != 0 && owner.Uid != uint32(os.Geteuid()) {
				err = fmt.Errorf("cannot trust the service on %s: it is neither root's nor yours", socket)
			}
			if err != nil {
				_ = c.Close() // nothing was sent
				return nil, err
			}
			return &Conn{c}, nil
		}
		if !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("cannot reach the service of sandboxes: %w", err)
		}
		if !pause.For(ctx, dialPause) {
			return nil, fmt.Errorf("cannot reach the service of sandboxes: %w; see: hinit status sandbox", err)
		}
	}
}

// Run asks for something and returns its exit code. The command ends when the context does, or this process. Reading the standard input may
// go on afterwards.
func (c *Conn) Run(ctx context.Context, req Request, local Streams) (int, error) {
	defer c.c.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() { _ = c.c.Close() })() // ends everything
	service, err := mux.NewClient(c.c)
	if refused := (*mux.RefusedError)(nil); errors.As(err, &refused) {
		fmt.Fprintln(local.Err, refused.Text)
		return refused.Code, nil
	}
	if err != nil {
		return 0, fmt.Errorf("cannot ask the service of sandboxes: %w", err)
	}
	st, err := service.Open(req)
	if err != nil {
		return 0, fmt.Errorf("cannot ask the service of sandboxes: %w", err)
	}
	if req.Stdin {
		st.Feed(local.In, func(error) bool { return true }) // what can't be read has ended
	}
	written := st.Outputs(local.Out, local.Err, cancel)
	st.Relay(local.Resizes)
	<-st.Done()
	_ = written() // what was wrong has ended the command
	end, err := st.End()
	switch {
	case ctx.Err() != nil:
		return 0, context.Cause(ctx)
	case err == nil && end.Fault != mux.NoFault:
		fmt.Fprintln(local.Err, end.Text)
	case err != nil:
		select {
		case <-st.Begun():
		default:
			return 0, fmt.Errorf("cannot ask the service of sandboxes: too many ask at this moment, or it has just ended (%w); the command has not begun: try again", err)
		}
		return 0, fmt.Errorf("%w (%w); it was not run again, because it may have done its work", ErrLost, err)
	}
	return end.Code, nil
}
