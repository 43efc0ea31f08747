package control

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/blocking"
)

// maxSocketPath is the longest path of a Unix socket: sun_path of unix(7) without the final zero.
const maxSocketPath = 107

// probeTimeout limits the test whether a server listens on an existing socket.
const probeTimeout = time.Second

// Listen returns a listener on a Unix socket at path. A path that begins with "@" is an abstract name: any process in the
// network namespace can connect, but none can replace the socket.
//
// The socket file has mode 0666, because access depends on the credentials of each client. Its directory must belong to root or
// to this user, and other users must not have write access, unless the directory is sticky. Otherwise another user could
// replace the file. A socket without a server is replaced; a live socket is an error. (Two processes that replace a dead socket
// at the same time may both succeed.) Closing the listener removes the file, if it still belongs to the listener.
//
// Listen blocks on the file system, and waits at most a second for an existing socket.
func Listen(path string) (net.Listener, error) {
	l, err := listen(path)
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %q: %w", path, err)
	}
	return l, nil
}

func listen(path string) (net.Listener, error) {
	if strings.HasPrefix(path, "@") {
		return listenUnix(path, path)
	}
	if len(path) > maxSocketPath {
		return nil, fmt.Errorf("the path has %d bytes and a socket's can have %d; set HINIT_RUNTIME_DIR to a shorter one", len(path), maxSocketPath)
	}
	dir, err := openSafeDir(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	// A renamed directory stays the same open directory.
	l, err := listenIn(dir, filepath.Base(path), path)
	if err != nil {
		_ = dir.Close()
		return nil, err
	}
	return l, nil
}

func refuseDescriptors(_, _ string, raw syscall.RawConn) error {
	return raw.Control(blocking.RefuseDescriptors)
}

// listenUnix creates a socket at name that never accepts file descriptors from clients. path is the socket's path in messages.
func listenUnix(name, path string) (*net.UnixListener, error) {
	refusing := net.ListenConfig{Control: refuseDescriptors}
	l, err := refusing.Listen(context.Background(), "unix", name)
	if errors.Is(err, unix.EADDRINUSE) {
		return nil, errSocketInUse(path)
	}
	u, _ := l.(*net.UnixListener) // u is nil after an error
	return u, withoutAddress(err)
}

// listenIn creates the socket base in dir. path is the path that clients use.
func listenIn(dir *os.File, base, path string) (*listener, error) {
	addr := "/proc/self/fd/" + strconv.Itoa(int(dir.Fd())) + "/" + base
	if err := removeDeadSocket(dir, base, path, addr); err != nil {
		return nil, err
	}
	u, err := listenUnix(addr, path)
	if err != nil {
		return nil, err
	}
	u.SetUnlinkOnClose(false)
	l := &listener{UnixListener: u, dir: dir, base: base, path: path}
	if err := errors.Join(
		unix.Fchmodat(int(dir.Fd()), base, 0o666, 0),
		unix.Fstatat(int(dir.Fd()), base, &l.stat, unix.AT_SYMLINK_NOFOLLOW),
	); err != nil {
		_ = u.Close()
		return nil, err
	}
	return l, nil
}

// removeDeadSocket removes the socket base in dir if no server listens on it. It returns an error if a server listens, or if the
// file is no socket.
func removeDeadSocket(dir *os.File, base, path, addr string) error {
	fd := int(dir.Fd())
	var st unix.Stat_t
	switch err := unix.Fstatat(fd, base, &st, unix.AT_SYMLINK_NOFOLLOW); {
	case errors.Is(err, unix.ENOENT):
		return nil
	case err != nil:
		return err
	case st.Mode&unix.S_IFMT != unix.S_IFSOCK:
		return errors.New("it exists and is not a socket; move it away")
	}
	conn, err := (&net.Dialer{Timeout: probeTimeout, Control: refuseDescriptors}).DialContext(context.Background(), "unix", addr)
	switch {
	case err == nil:
		discardInput(conn)
		_ = conn.Close()
		return errSocketInUse(path)
	case errors.Is(err, unix.ECONNREFUSED):
		return unix.Unlinkat(fd, base, 0)
	case errors.Is(err, unix.EAGAIN): // the queue of a live server is full
		return errSocketInUse(path)
	}
	return fmt.Errorf("it exists and cannot be asked whether it is alive: %w", withoutAddress(err))
}

// openSafeDir opens the directory name. It returns an error if others than root and this user can replace files in it.
func openSafeDir(name string) (*os.File, error) {
	dir, err := os.OpenFile(name, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if err := checkDir(dir, os.Geteuid()); err != nil {
		_ = dir.Close()
		return nil, err
	}
	return dir, nil
}

// checkDir returns an error if a user other than root and self could replace a socket in dir.
func checkDir(dir *os.File, self int) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		return err
	}
	others := uint32(0o022)
	if self != 0 { // many desktops give each user a separate group and the umask 002
		others = 0o002
	}
	switch {
	case st.Uid != 0 && int(st.Uid) != self:
		return fmt.Errorf("directory %q belongs to uid %d, who could replace the socket; set HINIT_RUNTIME_DIR to another", dir.Name(), st.Uid)
	case st.Mode&others != 0 && st.Mode&unix.S_ISVTX == 0:
		return fmt.Errorf("directory %q has mode %04o, so others could replace the socket; take their right to write away",
			dir.Name(), st.Mode&0o7777)
	}
	return nil
}

func errSocketInUse(path string) error {
	return fmt.Errorf("another hinit listens on %q; give this one its own HINIT_RUNTIME_DIR", path)
}

func withoutAddress(err error) error {
	if op := (*net.OpError)(nil); errors.As(err, &op) {
		return op.Err
	}
	return err
}

// listener is a listener with its open directory, so that Close can find the socket file. stat identifies the file.
type listener struct {
	*net.UnixListener
	dir        *os.File
	base, path string
	stat       unix.Stat_t
	once       sync.Once
	err        error
}

func (l *listener) Addr() net.Addr { return &net.UnixAddr{Name: l.path, Net: "unix"} }

// Close stops listening, and removes the socket file if the file still belongs to this socket.
func (l *listener) Close() error {
	l.once.Do(func() {
		l.err = blocking.Do(blocking.Runtime, func() (err error) {
			fd := int(l.dir.Fd())
			var st unix.Stat_t
			if unix.Fstatat(fd, l.base, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && st.Dev == l.stat.Dev && st.Ino == l.stat.Ino {
				err = unix.Unlinkat(fd, l.base, 0)
			}
			return errors.Join(err, l.UnixListener.Close(), l.dir.Close())
		})
	})
	return l.err
}

// Socket is a control socket for the next program of PID 1.
type Socket struct {
	Path     string
	File     *os.File `reexec:"FD"`
	Orders   *os.File // FIFO for orders, open so that it keeps unread orders; may be nil
	Dev, Ino uint64   // device and inode of the socket file; 0 for an abstract name
}

// Detach takes the socket from a listener of [Listen]. Closing the listener then leaves the socket open and keeps its file. New
// clients wait until the next owner answers. The caller owns the returned file.
func Detach(l net.Listener) (Socket, error) {
	s := Socket{Path: l.Addr().String()}
	u, _ := l.(*net.UnixListener) // the listener of an abstract name
	own, is := l.(*listener)
	if is {
		u = own.UnixListener
		s.Dev, s.Ino = uint64(own.stat.Dev), own.stat.Ino //nolint:unconvert // Dev is 32 bits wide on some machines
	}
	var err error
	if s.File, err = u.File(); err != nil {
		return s, fmt.Errorf("cannot detach the control socket: %w", err)
	}
	if is {
		own.stat = unix.Stat_t{} // a zero stat matches no file, so Close removes none
	}
	return s, nil
}

// Attach makes a listener from a socket that Detach has returned, and closes s.File. The listener owns the socket file again, so
// closing the listener removes the file.
func Attach(s Socket) (net.Listener, error) {
	defer s.File.Close()
	l, err := net.FileListener(s.File)
	if err != nil {
		return nil, fmt.Errorf("cannot keep listening on %q: %w", s.Path, err)
	}
	u, ok := l.(*net.UnixListener)
	if !ok {
		_ = l.Close()
		return nil, fmt.Errorf("cannot keep listening on %q: it is no Unix socket", s.Path)
	}
	if s.Ino == 0 {
		return u, nil
	}
	dir, err := openSafeDir(filepath.Dir(s.Path))
	if err != nil {
		_ = u.Close() // clients could no longer trust the socket
		return nil, fmt.Errorf("cannot keep listening on %q: %w", s.Path, err)
	}
	own := &listener{UnixListener: u, dir: dir, base: filepath.Base(s.Path), path: s.Path}
	own.stat.Dev, own.stat.Ino = s.Dev, s.Ino
	return own, nil
}
