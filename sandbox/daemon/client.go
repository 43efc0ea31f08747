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
	"hinit/internal/proc"
	"hinit/sandbox/mux"
)

// ErrNone means that the service has never run. The error of [Dial] wraps it then.
var ErrNone = errors.New("there is no service of sandboxes")

// ErrLost means that the service ended while the command ran. The error of [Conn.Run] wraps it then.
var ErrLost = errors.New("the service of sandboxes went away while the command ran")

// dialTime limits how long Dial waits for a service that can't be reached. It is long enough for hinit to restart the service,
// and less than the agent's time limit for docker version.
const (
	dialTime  = 4 * time.Second
	dialPause = 50 * time.Millisecond
)

// Conn is a connection to the service. It carries one request.
type Conn struct{ conn net.Conn }

// Dial connects to the service. It waits while the service is restarting. It refuses a socket whose server is neither root nor
// this user.
func Dial(ctx context.Context, socket string) (*Conn, error) {
	if _, err := os.Stat(socket); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("cannot reach %s: %w", socket, ErrNone)
	}
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	for {
		c, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
		if err == nil {
			owner, err := proc.Peer(c)
			if err == nil && owner.Uid != 0 && owner.Uid != uint32(os.Geteuid()) {
				err = fmt.Errorf("cannot trust the service on %s: it is neither root's nor yours", socket)
			}
			if err != nil {
				_ = c.Close() // nothing was sent
				return nil, err
			}
			return &Conn{c}, nil
		}
		if !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, unix.EAGAIN) && !errors.Is(err, fs.ErrNotExist) { // EAGAIN: the queue is full
			return nil, fmt.Errorf("cannot reach the service of sandboxes: %w", err)
		}
		if !pause.For(ctx, dialPause) {
			return nil, fmt.Errorf("cannot reach the service of sandboxes: %w; see: hinit status sandbox", err)
		}
	}
}

// Run sends a request and returns the exit code of the request's command. The command is ended when the context ends or this
// process dies. A read of standard input may still be in progress after Run has returned.
func (c *Conn) Run(ctx context.Context, req Request, local Streams) (int, error) {
	defer c.conn.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() { _ = c.conn.Close() })() // closing the connection ends everything
	service, err := mux.NewClient(c.conn)
	if err != nil {
		return 0, fmt.Errorf("cannot ask the service of sandboxes: %w", err)
	}
	st, err := service.Open(req)
	if err != nil {
		return 0, fmt.Errorf("cannot ask the service of sandboxes: %w", err)
	}
	if req.Stdin {
		st.Feed(local.In, func(error) bool { return true }) // an input that can't be read counts as ended
	}
	written := st.Outputs(local.Out, local.Err, cancel)
	st.Relay(local.Resizes)
	<-st.Done()
	_ = written() // a writer's error has already canceled the command
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
