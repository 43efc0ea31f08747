package lease

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// notifier sends messages to the init over a datagram socket (sd_notify(3)). It never blocks.
type notifier struct {
	fd      int
	address *unix.SockaddrUnix
}

func dial(path string) (*notifier, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot make a socket: %w", err)
	}
	return &notifier{fd, &unix.SockaddrUnix{Name: path}}, nil
}

// send sends lines of the form NAME=VALUE in one datagram. It fails if the init's receive queue is full.
func (n *notifier) send(lines string) error {
	if err := unix.Sendto(n.fd, []byte(lines), unix.MSG_NOSIGNAL, n.address); err != nil {
		return fmt.Errorf("cannot tell the init at %q: %w", n.address.Name, err)
	}
	return nil
}

func (n *notifier) close() { _ = unix.Close(n.fd) }
