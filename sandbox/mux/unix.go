package mux

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/guard"
	"hinit/internal/pause"
)

// ServeEach serves each connection of a listener in its own goroutine, until the context ends. It returns when all these
// goroutines have ended. If the process or the machine is out of descriptors or memory, it waits and tries again.
func ServeEach(ctx context.Context, l net.Listener, serve func(net.Conn)) error {
	defer context.AfterFunc(ctx, func() { _ = l.Close() })() // makes Accept return
	var all sync.WaitGroup
	defer all.Wait()
	for {
		c, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ENOMEM), errors.Is(err, unix.ECONNABORTED):
			pause.For(ctx, 50*time.Millisecond) // wait until some connection has ended
		case err != nil:
			return fmt.Errorf("cannot accept connections: %w", err)
		default:
			all.Go(func() {
				defer guard.Catch("a client")
				serve(c)
			})
		}
	}
}

// PrivateDir creates a directory that only this user can use. It accepts an existing directory if only this user can use it.
func PrivateDir(dir string) error {
	err := unix.Mkdir(dir, 0o700)
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || int(st.Uid) != os.Geteuid() || st.Mode&0o077 != 0 {
		return fmt.Errorf("cannot use %s: it is not a directory that only user %d can use; remove it", dir, os.Geteuid())
	}
	return nil
}
