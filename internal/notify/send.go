package notify

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// Send says something to whoever listens at path, a file or "@name", without waiting for a listener that takes nothing. It may wait for the disk.
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
