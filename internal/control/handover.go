package control

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"hinit/client"
)

// Replacer is a Core that can become another image of itself.
type Replacer interface {
	// Reexec checks whether it can be done and begins with it; it does not wait for the end. Image counts the images.
	Reexec(ctx context.Context, binary string) (image int, err error)
}

func postReexec(s *Server, r *request) (reply, error) {
	if _, err := queryOf(r); err != nil {
		return reply{}, err
	}
	var body client.Reexec
	if err := decode(r.body, &body); err != nil {
		return reply{}, err
	}
	core, can := s.core.(Replacer)
	if !can {
		return reply{}, refuse(client.KindFailed, "this hinit cannot be replaced")
	}
	image, err := core.Reexec(r.Context(), body.Binary)
	if err != nil {
		return reply{}, err
	}
	return withStatus(http.StatusAccepted, client.ReexecReply{Image: image})
}

// Socket is a control socket on its way to another image of this process.
type Socket struct {
	Path     string
	FD       int
	Dev, Ino uint64 // of the socket file; 0 for an abstract name
}

// Detach takes the socket out of a listener of Listen, so that closing the listener neither ends the socket nor removes its
// file. Clients that connect from then on wait for the answer of whoever gets the socket. The descriptor is the caller's, and
// closed on exec.
func Detach(l net.Listener) (Socket, error) {
	s := Socket{Path: l.Addr().String(), FD: -1}
	u, ok := l.(*net.UnixListener)
	if own, is := l.(*listener); is {
		u, ok = own.UnixListener, true
		s.Dev, s.Ino = uint64(own.stat.Dev), own.stat.Ino //nolint:unconvert // 32 bits wide on some machines
	}
	if !ok {
		return s, errors.New("internal error: not a control socket")
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return s, fmt.Errorf("cannot detach the control socket: %w", err)
	}
	var failed error
	err = raw.Control(func(fd uintptr) { s.FD, failed = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 3) })
	if err = errors.Join(err, failed); err != nil {
		return s, fmt.Errorf("cannot detach the control socket: %w", err)
	}
	if own, is := l.(*listener); is {
		own.stat = unix.Stat_t{} // no file is like that, so Close removes none
	}
	return s, nil
}

// Attach makes a listener of a detached socket. It takes the descriptor over.
func Attach(s Socket) (net.Listener, error) {
	f := os.NewFile(uintptr(s.FD), s.Path)
	if f == nil {
		return nil, fmt.Errorf("cannot go on listening on %q: %d is no descriptor", s.Path, s.FD)
	}
	defer f.Close() // FileListener has a copy
	l, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("cannot go on listening on %q: %w", s.Path, err)
	}
	u, ok := l.(*net.UnixListener)
	if !ok {
		_ = l.Close() // it is somebody else's idea
		return nil, fmt.Errorf("cannot go on listening on %q: it is no Unix socket", s.Path)
	}
	if s.Ino == 0 {
		return u, nil
	}
	dir, err := safeDir(filepath.Dir(s.Path))
	if err != nil {
		_ = u.Close() // nobody could find it
		return nil, fmt.Errorf("cannot go on listening on %q: %w", s.Path, err)
	}
	own := &listener{UnixListener: u, dir: dir, base: filepath.Base(s.Path), path: s.Path}
	own.stat.Dev, own.stat.Ino = s.Dev, s.Ino
	return own, nil
}
