package dial

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"hinit/client"
)

// connectTime limits one attempt to connect. A Unix socket makes a client wait only if its backlog is full.
const connectTime = 2 * time.Second

// openedTime is how long a connection that Dial made may wait for the first request. The server waits longer.
const openedTime = time.Second

// opened is a connection that has not carried a request yet.
type opened struct {
	net.Conn
	at time.Time
}

// Dial returns a client of the first candidate that accepts a connection, if its server runs as root, as this user or as the owner
// of process 1. It blocks at most 2 seconds per candidate. A request within a second uses the same connection. The error is
// ErrNotAllowed if this user may not open a candidate, else ErrUnreachable.
func Dial(candidates []string) (*Client, error) {
	var failed *client.Error
	for _, socket := range candidates {
		c := New(socket)
		c.found = true
		conn, err := c.connect(context.Background())
		if err == nil {
			c.opened.Store(&opened{conn, time.Now()})
			return c, nil
		}
		if failed == nil || err.Kind == client.KindNotAllowed && failed.Kind != client.KindNotAllowed {
			failed = err
		}
	}
	switch {
	case failed == nil:
		failed = &client.Error{Kind: client.KindUnreachable, Message: "there is no socket to look for; set HINIT_RUNTIME_DIR"}
	case failed.Kind == client.KindUnreachable && len(candidates) > 1:
		failed.Message = fmt.Sprintf("no hinit listens on any of %s; is it running here?", quoted(candidates))
	}
	failed.Doing = "reach hinit"
	return nil, failed
}

func quoted(words []string) string {
	out := make([]string, len(words))
	for i, w := range words {
		out[i] = fmt.Sprintf("%q", w)
	}
	return strings.Join(out, ", ")
}

func (c *Client) connection(ctx context.Context) (net.Conn, *client.Error) {
	if o := c.opened.Swap(nil); o != nil {
		if time.Since(o.at) < openedTime {
			return o.Conn, nil
		}
		_ = o.Close() // nothing was sent
	}
	return c.connect(ctx)
}

func (c *Client) connect(ctx context.Context) (net.Conn, *client.Error) {
	dialer := net.Dialer{Timeout: connectTime}
	conn, err := dialer.DialContext(ctx, "unix", c.socket)
	if err == nil && (c.found || strings.HasPrefix(c.socket, "@")) {
		if err = trusted(conn, !strings.HasPrefix(c.socket, "/proc/")); err != nil {
			_ = conn.Close() // nothing was sent
		}
	}
	switch {
	case err == nil:
		return conn, nil
	case errors.Is(err, fs.ErrPermission):
		message := fmt.Sprintf("this user may not open %q; ask as root or as the agent's user", c.socket)
		return nil, &client.Error{Kind: client.KindNotAllowed, Message: message, Cause: err}
	}
	message := fmt.Sprintf("no hinit listens on %q (%v); is it running here?", c.socket, reason(err))
	return nil, &client.Error{Kind: client.KindUnreachable, Message: message, Cause: err}
}

// trusted returns an error unless the server runs as root, as this user, or as the owner of process 1. Any user can take an abstract
// name, and a writable directory on the path lets others replace the socket. If the server is a process of this PID namespace, it
// must belong to this container: the containers of a pod may share the namespace and a volume. With here false this last check is
// left out, for a socket that belongs to another container on purpose.
func trusted(conn net.Conn, here bool) error {
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return err
	}
	var cred *syscall.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) {
		cred, failed = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	})
	if err = errors.Join(err, failed); err != nil {
		return err
	}
	if here && cred.Pid > 0 && !sameRoot(int(cred.Pid)) {
		return fmt.Errorf("process %d listens there, of another container", cred.Pid)
	}
	if cred.Uid == 0 || int(cred.Uid) == os.Geteuid() {
		return nil
	}
	if info, err := os.Stat("/proc/1"); err == nil && info.Sys().(*syscall.Stat_t).Uid == cred.Uid {
		return nil
	}
	return fmt.Errorf("uid %d has taken the name", cred.Uid)
}

// reason removes the address from a network error. The caller's message already names it.
func reason(err error) error {
	if op := (*net.OpError)(nil); errors.As(err, &op) {
		return op.Err
	}
	return err
}
