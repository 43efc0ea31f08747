package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const notifyUsage = "notify [--no-wait] [--times N] VALUE... | notify --listen PATH"

// notifyVar is the variable with the socket of the supervisor of this process (sd_notify(3)).
const notifyVar = "NOTIFY_SOCKET"

// notifyPatience is how long cmdNotify waits for the supervisor to read the notification.
const notifyPatience = time.Minute

// cmdNotify sends a notification to the supervisor, as systemd-notify does. Each VALUE, such as READY=1, is a line of the
// notification. cmdNotify waits until the supervisor has read it, because the supervisor can't find the service of a sender
// that has ended.
func cmdNotify(c *call) int {
	f := flag.NewFlagSet("notify", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	noWait := f.Bool("no-wait", false, "")
	times := f.Int("times", 1, "")
	listen := f.String("listen", "", "")
	if err := f.Parse(c.args); err != nil {
		return c.fail(exitUsage, err)
	}
	if *listen != "" {
		return c.receiveNotification(*listen)
	}
	path := os.Getenv(notifyVar)
	if path == "" || f.NArg() == 0 {
		return c.fail(exitUsage, fmt.Errorf("expected a value, and a socket in %s; usage: %s", notifyVar, notifyUsage))
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return c.fail(exitFailed, err)
	}
	defer unix.Close(fd)
	to := &unix.SockaddrUnix{Name: path}
	for range *times {
		if err := unix.Sendto(fd, []byte(strings.Join(f.Args(), "\n")), 0, to); err != nil {
			return c.fail(exitFailed, fmt.Errorf("cannot tell %s: %w", path, err))
		}
	}
	if *noWait {
		return exitOK
	}
	if err := notifyBarrier(fd, to); err != nil {
		return c.fail(exitFailed, err)
	}
	return exitOK
}

// notifyBarrier waits until the receiver has read all earlier messages. It sends BARRIER=1 with a descriptor, which the receiver
// closes when it reads this message (sd_notify_barrier(3)).
func notifyBarrier(fd int, to unix.Sockaddr) error {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return err
	}
	defer unix.Close(p[0])
	err := unix.Sendmsg(fd, []byte("BARRIER=1"), unix.UnixRights(p[1]), to, 0)
	unix.Close(p[1])
	if err != nil {
		return fmt.Errorf("cannot send the barrier: %w", err)
	}
	end := time.Now().Add(notifyPatience)
	for time.Now().Before(end) {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(p[0])}}, 1000)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		if n > 0 {
			return nil
		}
	}
	return errors.New("nobody has read it in time")
}

// receiveNotification makes a socket at path, waits for one message on it, and prints the message.
func (c *call) receiveNotification(path string) int {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return c.fail(exitFailed, err)
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		return c.fail(exitFailed, fmt.Errorf("cannot listen on %s: %w", path, err))
	}
	buf := make([]byte, 4096)
	n, _, err := unix.Recvfrom(fd, buf, 0)
	if err != nil {
		return c.fail(exitFailed, err)
	}
	fmt.Fprintf(c.stdout, "%s\n", buf[:n])
	return exitOK
}
