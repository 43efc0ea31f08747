package control

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/internal/blocking"
	"hinit/internal/guard"
)

// A shell can write an order into a FIFO in the directory of the control socket, even when the system can't create a process or
// thread. For example: echo stop NAME > /run/hinit/orders.

const (
	// ordersName is the name of the FIFO in the directory of the control socket.
	ordersName = "orders"
	// maxOrders is the maximum number of orders that are carried out at the same time.
	maxOrders = 16
	// longestOrder is the maximum length of a line with an order, in bytes.
	longestOrder = 512
)

// openOrders creates the FIFO in dir, or opens an existing one. Only hinit's own user may write to it.
func openOrders(dir string) (f *os.File, err error) {
	err = blocking.Do(blocking.Runtime, func() error {
		path := filepath.Join(dir, ordersName)
		var st unix.Stat_t
		if unix.Lstat(path, &st) != nil || st.Mode != unix.S_IFIFO|0o600 || int(st.Uid) != os.Geteuid() {
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) { // the file has another type, owner or mode
				return err
			}
			if err := unix.Mkfifo(path, 0o600); err != nil {
				return fmt.Errorf("cannot make the FIFO %q: %w", path, err)
			}
		}
		// With both ends open, a read never reaches the end of file, and the open does not wait for a writer.
		f, err = os.OpenFile(path, unix.O_RDWR|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		return err
	})
	return f, err
}

// serveOrders reads orders from f, one per line, until f is closed. carryOut carries out an order, blocks until that is done, and
// returns the result as text. say writes the result to the container log.
func serveOrders(f *os.File, carryOut func(order string) string, say func(format string, args ...any)) {
	turns := make(chan struct{}, maxOrders)
	lines := bufio.NewReaderSize(f, longestOrder)
	for {
		line, more, err := lines.ReadLine()
		if err != nil {
			if !errors.Is(err, os.ErrClosed) {
				say("orders: no more are taken: %v", err)
			}
			return
		}
		order := strings.TrimSpace(string(line))
		switch {
		case more:
			for more && err == nil {
				_, more, err = lines.ReadLine()
			}
			say("orders: a line is longer than %d bytes, so it is left out", longestOrder)
			continue
		case order == "":
			continue
		}
		select {
		case turns <- struct{}{}:
		default:
			say("orders: %q is not carried out: %d others are not done yet", order, maxOrders)
			continue
		}
		guard.Go("carrying out an order", func() {
			defer func() { <-turns }()
			for line := range strings.Lines(carryOut(order)) {
				say("orders: %s: %s", order, strings.TrimSuffix(line, "\n"))
			}
		})
	}
}

// Order carries out "stop NAME", "start NAME", "restart NAME" or "status" with the rights of hinit's own user. It returns the
// message that the command line would print. It blocks as long as the same request over the socket would.
func (s *Server) Order(ctx context.Context, order string) string {
	words := strings.Fields(order)
	method, target := http.MethodPost, ""
	switch {
	case len(words) == 1 && words[0] == "status":
		method, target = http.MethodGet, "/v1/status?as=table"
	case len(words) == 2 && isVerb(words[0]):
		target = "/v1/services/" + url.PathEscape(words[1]) + "/" + words[0]
	default:
		return "it is none of: stop NAME, start NAME, restart NAME, status"
	}
	ctx = context.WithValue(ctx, peerKey{}, peer{pid: fifoPID, uid: s.policy.self})
	r, err := http.NewRequestWithContext(ctx, method, target, http.NoBody)
	if err != nil {
		return err.Error()
	}
	r.Header.Set("Accept", client.Text)
	out := recorder{header: make(http.Header)}
	s.serve(&out, r)
	return strings.TrimSpace(out.String())
}

func isVerb(word string) bool {
	_, known := effects[client.Verb(word)]
	return known
}

// recorder is an http.ResponseWriter that keeps the response in memory.
type recorder struct {
	bytes.Buffer
	header http.Header
}

func (w *recorder) Header() http.Header { return w.header }

func (w *recorder) WriteHeader(int) {}
