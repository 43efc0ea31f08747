package control

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"hinit/client"
)

func postReexec(s *Server, r *request, body client.Reexec) (reply, error) {
	image, err := s.core.Reexec(r.Context(), body.Binary)
	if err != nil {
		return reply{}, err
	}
	return withStatus(http.StatusAccepted, client.ReexecReply{Image: image})
}

// Socket is a control socket while it is handed over to the next program of PID 1.
type Socket struct {
	Path     string
	File     *os.File `reexec:"FD"`
	Dev, Ino uint64   // device and inode of the socket file; 0 for an abstract name
}

// Detach separates the socket from a listener of [Listen]. After that, closing the listener neither closes the socket nor
// removes its file. New clients wait until the next owner of the socket answers. The caller owns the returned file.
func Detach(l net.Listener) (Socket, error) {
	s := Socket{Path: l.Addr().String()}
	u, ok := l.(*net.UnixListener)
	if own, is := l.(*listener); is {
		u, ok = own.UnixListener, true
		s.Dev, s.Ino = uint64(own.stat.Dev), own.stat.Ino //nolint:unconvert // 32 bits wide on some machines
	}
	if !ok {
		return s, errors.New("internal error: not a control socket")
	}
	var err error
	if s.File, err = u.File(); err != nil {
		return s, fmt.Errorf("cannot detach the control socket: %w", err)
	}
	if own, is := l.(*listener); is {
		own.stat = unix.Stat_t{} // matches no file, so Close removes none
	}
	return s, nil
}

// Attach makes a listener from a detached socket, and closes s.File. The listener then owns the socket file.
func Attach(s Socket) (net.Listener, error) {
	defer s.File.Close() // FileListener has made a copy
	l, err := net.FileListener(s.File)
	if err != nil {
		return nil, fmt.Errorf("cannot go on listening on %q: %w", s.Path, err)
	}
	u, ok := l.(*net.UnixListener)
	if !ok {
		_ = l.Close() // the descriptor is no Unix socket
		return nil, fmt.Errorf("cannot go on listening on %q: it is no Unix socket", s.Path)
	}
	if s.Ino == 0 {
		return u, nil
	}
	dir, err := safeDir(filepath.Dir(s.Path))
	if err != nil {
		_ = u.Close() // the directory of the socket file is gone or unsafe, so no client may use the socket
		return nil, fmt.Errorf("cannot go on listening on %q: %w", s.Path, err)
	}
	own := &listener{UnixListener: u, dir: dir, base: filepath.Base(s.Path), path: s.Path}
	own.stat.Dev, own.stat.Ino = s.Dev, s.Ino
	return own, nil
}
