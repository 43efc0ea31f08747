package container

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
	"hinit/internal/control"
	"hinit/internal/guard"
)

const (
	// ordersName is the FIFO beside the control socket in which orders are written. A shell can do that without a process or a
	// thread of its own, when there is none to be had, with: echo stop NAME > /run/hinit/orders.
	ordersName = "orders"
	// ordersAtOnce is how many orders are carried out at the same time.
	ordersAtOnce = 16
	// longestOrder is how long a line may be.
	longestOrder = 512
)

// openOrders makes the FIFO in the directory of the control socket. Only who hinit runs as may write into it: root.
func openOrders(dir string) (*os.File, error) {
	path := filepath.Join(dir, ordersName)
	var st unix.Stat_t
	// One that is there stays: a shell may wait in it for the image that comes after the one it knew.
	if unix.Lstat(path, &st) != nil || st.Mode != unix.S_IFIFO|0o600 || int(st.Uid) != os.Geteuid() {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) { // of another kind
			return nil, err
		}
		if err := unix.Mkfifo(path, 0o600); err != nil {
			return nil, fmt.Errorf("cannot make the FIFO %q: %w", path, err)
		}
	}
	// Open for both ends, it never comes to an end, and never waits for a writer.
	return os.OpenFile(path, unix.O_RDWR|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
}

// takeOrders carries out what is written into the FIFO until the container ends. What comes of it is in the container's log. Once it
// has begun, it goes on: a server that takes the place of another has its orders, too.
func (c *container) takeOrders(dir string) {
	if !c.taking.CompareAndSwap(false, true) {
		return
	}
	var f *os.File
	err := blocking.Do(blocking.Runtime, func() (err error) {
		f, err = openOrders(dir)
		return err
	})
	if err != nil {
		c.taking.Store(false)
		c.warn("hinit takes no orders by a FIFO: %v", err)
		return
	}
	guard.Go("taking orders", func() {
		defer f.Close()
		turns := make(chan struct{}, ordersAtOnce)
		lines := bufio.NewReaderSize(f, longestOrder)
		for {
			line, more, err := lines.ReadLine()
			if err != nil {
				c.say("[hinit] orders: no more are taken: %v", err)
				return
			}
			order := strings.TrimSpace(string(line))
			switch {
			case more:
				for more && err == nil {
					_, more, err = lines.ReadLine()
				}
				c.say("[hinit] orders: a line is longer than %d bytes, so it is left out", longestOrder)
			case order != "":
				c.mu.Lock()
				server := c.server
				c.mu.Unlock()
				c.takeOrder(server, order, turns)
			}
		}
	})
}

func (c *container) takeOrder(server *control.Server, order string, turns chan struct{}) {
	select {
	case turns <- struct{}{}:
	default:
		c.say("[hinit] orders: %q is not carried out: %d others are not done yet", order, ordersAtOnce)
		return
	}
	guard.Go("carrying out an order", func() {
		defer func() { <-turns }()
		for line := range strings.Lines(server.Order(context.Background(), order)) {
			c.say("[hinit] orders: %s: %s", order, strings.TrimSuffix(line, "\n"))
		}
	})
}
