package notify

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/blocking"
)

// Send sends a message to the socket at path, which is a file name or an abstract "@name". If the receiver's queue is full, it
// fails instead of waiting. It may wait for the disk.
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

// outerPatience is the time limit of SendOuter. The limit is needed because the path may be on a disk that hangs.
const outerPatience = 5 * time.Second

// SendOuter sends a message to the program that started this container, if that program has set NOTIFY_SOCKET. systemd and podman
// --sdnotify=container do so. It blocks for at most five seconds.
func SendOuter(text string) error {
	path := os.Getenv(SocketVar)
	if path == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), outerPatience)
	defer cancel()
	if err := blocking.Within(ctx, blocking.Foreign, "the notification", func() error { return Send(path, text) }); err != nil {
		return fmt.Errorf("to %s=%q: %w", SocketVar, path, err)
	}
	return nil
}
