// Package orderfifo takes orders from a FIFO beside the control socket. A shell can write one there when no process or thread is to
// be had: echo stop NAME > /run/hinit/orders.
//
// It promises that a writer never waits, and that at most sixteen orders are carried out at a time. It owns the goroutine of
// [Serve], and one for each order under way.
package orderfifo

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"hinit/internal/blocking"
	"hinit/internal/guard"
)

const (
	// Name is the FIFO's, in the directory of the control socket.
	Name = "orders"
	// atOnce is how many orders are carried out at the same time.
	atOnce = 16
	// longest is how long a line may be.
	longest = 512
)

// Open makes the FIFO in a directory, or opens the one that is there. Only the user that hinit runs as may write to it.
func Open(dir string) (f *os.File, err error) {
	err = blocking.Do(blocking.Runtime, func() error {
		path := filepath.Join(dir, Name)
		var st unix.Stat_t
		if unix.Lstat(path, &st) != nil || st.Mode != unix.S_IFIFO|0o600 || int(st.Uid) != os.Geteuid() {
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) { // of another kind
				return err
			}
			if err := unix.Mkfifo(path, 0o600); err != nil {
				return fmt.Errorf("cannot make the FIFO %q: %w", path, err)
			}
		}
		// Open for both ends, it never comes to an end, and never waits for a writer.
		f, err = os.OpenFile(path, unix.O_RDWR|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		return err
	})
	return f, err
}

// Serve carries out the lines of f until it is closed. carryOut blocks as long as the order takes; say gets what it returns, for
// people.
func Serve(f *os.File, carryOut func(ctx context.Context, order string) string, say func(format string, args ...any)) {
	turns := make(chan struct{}, atOnce)
	lines := bufio.NewReaderSize(f, longest)
	for {
		line, more, err := lines.ReadLine()
		if err != nil {
			say("orders: no more are taken: %v", err)
			return
		}
		order := strings.TrimSpace(string(line))
		switch {
		case more:
			for more && err == nil {
				_, more, err = lines.ReadLine()
			}
			say("orders: a line is longer than %d bytes, so it is left out", longest)
			continue
		case order == "":
			continue
		}
		select {
		case turns <- struct{}{}:
		default:
			say("orders: %q is not carried out: %d others are not done yet", order, atOnce)
			continue
		}
		guard.Go("carrying out an order", func() {
			defer func() { <-turns }()
			for line := range strings.Lines(carryOut(context.Background(), order)) {
				say("orders: %s: %s", order, strings.TrimSuffix(line, "\n"))
			}
		})
	}
}
