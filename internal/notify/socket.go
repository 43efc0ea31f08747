package notify

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"hinit/internal/blocking"
)

const (
	// dirName is the directory of the sockets, beside the control socket.
	dirName = "notify"
	// maxPath is the maximum length in bytes of the path of a Unix socket (unix(7)).
	maxPath = 107
)

// socket receives the messages of one service.
type socket struct {
	File *os.File
	Path string
	UID  uint32 // user who may write to the socket, besides root
	GID  uint32

	mu  sync.Mutex `reexec:"-"` // a goroutine holds mu while it reads datagrams
	buf []byte     `reexec:"-"`
}

// listen makes the socket of a service below dir. It replaces a file that an earlier container has left. It may block on the
// disk.
func listen(dir, service string, uid, gid uint32) (*socket, error) {
	path := dir + "/" + dirName + "/" + service
	if len(path) > maxPath {
		return nil, fmt.Errorf("the path %q has %d bytes and a socket's can have %d; set HINIT_RUNTIME_DIR to a shorter one", path, len(path), maxPath)
	}
	at, err := openDir(dir + "/" + dirName)
	if err != nil {
		return nil, err
	}
	defer at.Close()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	// bind(2) gives the file the mode of the descriptor, 0600, so that no other user can write to it before the change of
	// owner.
	in := "/proc/self/fd/" + strconv.Itoa(int(at.Fd())) + "/" + service
	if err := unix.Unlinkat(int(at.Fd()), service, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("cannot remove the old socket %q: %w", path, err)
	}
	if err := errors.Join(
		unix.Fchmod(fd, 0o600),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSCRED, 1),
		unix.Bind(fd, &unix.SockaddrUnix{Name: in}),
	); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("cannot make the socket %q: %w", path, err)
	}
	if int(uid) != os.Geteuid() || int(gid) != os.Getegid() {
		if err := unix.Fchownat(int(at.Fd()), service, int(uid), int(gid), unix.AT_SYMLINK_NOFOLLOW); err != nil {
			_ = unix.Close(fd)
			return nil, fmt.Errorf("cannot give the socket %q to uid %d: %w", path, uid, err)
		}
	}
	return &socket{File: os.NewFile(uintptr(fd), path), Path: path, UID: uid, GID: gid}, nil
}

// openDir opens the directory of the sockets, and makes it if necessary. All users may enter it, but only this user can
// change it.
func openDir(path string) (*os.File, error) {
	if err := os.Mkdir(path, 0o711); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, err
	}
	d, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	err = unix.Fstat(int(d.Fd()), &st)
	switch {
	case err != nil:
	case int(st.Uid) != os.Geteuid():
		err = fmt.Errorf("the directory %q belongs to uid %d; remove it", path, st.Uid)
	case st.Mode&0o777 != 0o711: // the umask may have reduced the mode
		err = unix.Fchmod(int(d.Fd()), 0o711)
	}
	if err != nil {
		_ = d.Close()
		return nil, err
	}
	return d, nil
}

// credSpace is just enough for the sender's credentials, so that the kernel never opens descriptors that a sender passes.
var credSpace = unix.CmsgSpace(int(unsafe.Sizeof(unix.Ucred{})))

// readBurst reads up to datagramsPerInterval datagrams, and calls each for every message. It returns the number of datagrams.
func (s *socket) readBurst(each func(pid int, m Message)) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	raw, err := s.File.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) { // Control fails if the socket is closed
		for n < datagramsPerInterval && s.readOne(int(fd), each) {
			n++
		}
	})
	return n
}

// readOne handles the first datagram in the socket; false means that the socket was empty. It takes the datagram out of the
// socket only after each has returned, so that a re-execution in between does not lose it.
func (s *socket) readOne(fd int, each func(pid int, m Message)) bool {
	if s.buf == nil {
		s.buf = make([]byte, MaxMessage+credSpace)
	}
	data, oob := s.buf[:MaxMessage], s.buf[MaxMessage:]
	n, oobn, flags, _, err := receive(fd, data, oob, unix.MSG_PEEK)
	if err != nil {
		return false
	}
	if pid := senderPID(oob[:oobn]); pid > 0 && flags&unix.MSG_TRUNC == 0 {
		if m := Parse(data[:n]); m != (Message{}) {
			each(pid, m)
		}
	}
	return blocking.DoWithPeer(func() (err error) {
		_, _, _, _, err = receive(fd, data[:1], nil, 0)
		return err
	}) == nil
}

func receive(fd int, data, oob []byte, flags int) (n, oobn, got int, from unix.Sockaddr, err error) {
	for {
		n, oobn, got, from, err = unix.Recvmsg(fd, data, oob, flags|unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
		if !errors.Is(err, unix.EINTR) {
			return n, oobn, got, from, err
		}
	}
}

// senderPID returns the PID of the sender; 0 if the sender is not in this PID namespace.
func senderPID(oob []byte) int {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return 0
	}
	for i := range messages {
		if who, err := unix.ParseUnixCredentials(&messages[i]); err == nil {
			return int(who.Pid)
		}
	}
	return 0
}

// Send sends a message to the socket at path: a file, or "@name" for an abstract one. It fails if the receiver's queue is
// full. It may wait for the disk.
func Send(path, text string) error {
	if !strings.HasPrefix(path, "/") && !strings.HasPrefix(path, "@") || len(path) > maxPath {
		return fmt.Errorf("expected an absolute path of at most %d bytes, or a name after @", maxPath)
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("cannot make a socket: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.Sendto(fd, []byte(text), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, &unix.SockaddrUnix{Name: path}); err != nil {
		return fmt.Errorf("cannot send to it: %w", err)
	}
	return nil
}

// managerTimeout is how long SendToManager may take, because the path may be on a disk that hangs.
const managerTimeout = 5 * time.Second

// SendToManager sends a message to the program that started this container, if that program has set NOTIFY_SOCKET. systemd and
// podman --sdnotify=container do so. It blocks for at most five seconds.
func SendToManager(text string) error {
	path := os.Getenv(SocketVar)
	if path == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), managerTimeout)
	defer cancel()
	if err := blocking.Within(ctx, blocking.Foreign, "the notification", func() error { return Send(path, text) }); err != nil {
		return fmt.Errorf("to %s=%q: %w", SocketVar, path, err)
	}
	return nil
}
