package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"hinit/sandbox"
)

// ErrNone is wrapped by the error of [Dial] where no service ever listened.
var ErrNone = errors.New("there is no service of sandboxes")

// ErrLost is wrapped by the error of [Conn.Run] when the service has gone while the command ran.
var ErrLost = errors.New("the service of sandboxes went away while the command ran")

// dialTime is how long a service that has been there may be away: as long as it takes hinit to start it again, and less than the agent's
// patience with docker version.
const (
	dialTime  = 4 * time.Second
	dialPause = 50 * time.Millisecond
)

// Conn is a connection to the service, for one request.
type Conn struct{ c net.Conn }

// Dial connects to the service. It waits for one that is being started again, and refuses to talk to a socket of another user than root
// or this one.
func Dial(ctx context.Context, socket string) (*Conn, error) {
	if _, err := os.Stat(socket); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("cannot reach %s: %w", socket, ErrNone)
	}
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	for {
		c, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
		if err == nil {
			owner, err := peerOf(c)
			if err == nil && owner.UID != 0 && owner.UID != uint32(os.Geteuid()) {
				err = fmt.Errorf("cannot trust the service on %s: it is neither root's nor yours", socket)
			}
			if err != nil {
				_ = c.Close() // nothing was sent
				return nil, err
			}
			return &Conn{c}, nil
		}
		if !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("cannot reach the service of sandboxes: %w", err)
		}
		select {
		case <-time.After(dialPause):
		case <-ctx.Done():
			return nil, fmt.Errorf("cannot reach the service of sandboxes: %w; see: hinit status sandbox", err)
		}
	}
}

// Local are the streams of a request, on the caller's side.
type Local struct {
	In       io.Reader
	Out, Err io.Writer
	Resizes  <-chan sandbox.Size
	Signals  <-chan sandbox.SignalNo
}

// Run asks for something and returns its exit code. The command ends when the context does, or this process. Reading In may go on
// afterwards.
func (c *Conn) Run(ctx context.Context, req Request, local Local) (int, error) {
	defer c.c.Close()
	stop := context.AfterFunc(ctx, func() { _ = c.c.Close() }) // ends everything
	defer stop()
	f := &frames{r: c.c, w: c.c}
	if err := f.writeJSON(kindRequest, req); err != nil && !errors.Is(err, unix.EPIPE) { // who is refused is told without being heard
		return 0, fmt.Errorf("cannot ask the service of sandboxes: %w", err)
	}
	credit := newCredit()
	defer credit.close()
	if req.Stdin {
		go send(f, credit, local.In)
	}
	done := make(chan struct{})
	defer close(done)
	go news(f, local, done)
	var buf []byte
	for {
		k, data, err := f.read(&buf, frameMost)
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		if err != nil {
			return 0, fmt.Errorf("%w (%w); it was not run again, because it may have done its work", ErrLost, err)
		}
		switch k {
		case kindStdout:
			_, err = local.Out.Write(data)
		case kindStderr:
			_, err = local.Err.Write(data)
		case kindCredit:
			n := 0
			if err = json.Unmarshal(data, &n); err == nil {
				credit.add(n)
			}
		case kindExit:
			code := 0
			err = json.Unmarshal(data, &code)
			return code, err
		default:
			err = fmt.Errorf("the service of sandboxes says something that this version does not know: %q", k)
		}
		if err != nil {
			return 0, err
		}
	}
}

// news sends window sizes and signals until done.
func news(f *frames, local Local, done <-chan struct{}) {
	for {
		var err error
		select {
		case size := <-local.Resizes:
			err = f.writeJSON(kindResize, size)
		case sig := <-local.Signals:
			err = f.writeJSON(kindSignal, sig)
		case <-done:
			return
		}
		if err != nil {
			return // the reader says so
		}
	}
}

// send sends standard input, no further ahead than the window.
func send(f *frames, credit *credit, in io.Reader) {
	buf := make([]byte, 32<<10)
	for {
		n, err := in.Read(buf)
		for data := buf[:n]; len(data) > 0; {
			allowed := credit.take(len(data))
			if allowed == 0 || f.write(kindStdin, data[:allowed]) != nil {
				return
			}
			data = data[allowed:]
		}
		if err != nil {
			_ = f.write(kindStdinEnd, nil) // the reader says what is wrong
			return
		}
	}
}

// credit is how much standard input may be sent.
type credit struct {
	mu     sync.Mutex
	more   *sync.Cond
	left   int
	closed bool
}

func newCredit() *credit {
	c := &credit{left: windowSize}
	c.more = sync.NewCond(&c.mu)
	return c
}

func (c *credit) add(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left += n
	c.more.Broadcast()
}

func (c *credit) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	c.more.Broadcast()
}

// take waits for some credit and returns how much of n it got; 0 after close.
func (c *credit) take(n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.left == 0 && !c.closed {
		c.more.Wait()
	}
	if c.closed {
		return 0
	}
	n = min(n, c.left)
	c.left -= n
	return n
}
