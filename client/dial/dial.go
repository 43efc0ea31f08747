package dial

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"hinit/client"
)

// Client sends requests to one hinit. A method blocks until hinit has answered, ctx ends or its time limit is over. The limit is
// 10 seconds, and a minute for Rescan, Reload and Examine. A command that waits for its effect has 10 seconds more than its
// timeout.
type Client struct {
	// Returns the paths at which hinit may listen, best first; nil if the socket is fixed.
	candidatePaths  func() []string
	socket          atomic.Pointer[string] // Fixed socket, or the socket at which the last search has found hinit.
	socketSearched  bool                   // Whether the socket comes from a search; then the client must check which user runs the server.
	cutRetryTimeout time.Duration
}

// connectTimeout limits one attempt to connect. Connecting to a Unix socket takes time only if the server's queue is full.
const connectTimeout = 2 * time.Second

// New returns a client for the hinit that listens on socket, a path or an abstract "@name". It doesn't connect.
func New(socket string) *Client {
	c := &Client{cutRetryTimeout: cutRetryTimeout}
	c.socket.Store(&socket)
	return c
}

// ForThisContainer returns a client for the init of this container. It doesn't connect. At the first request it looks for the
// socket of the init, and looks again when the init has stopped listening there. socket is the configured path, or "". env looks
// up environment variables.
func ForThisContainer(socket string, env func(string) (string, bool)) *Client {
	return searchingClient(func() []string { return Sockets(socket, env, os.Geteuid()) })
}

// Find is [Dial] with the paths that [Sockets] returns.
func Find(socket string, env func(string) (string, bool)) (*Client, error) {
	return Dial(Sockets(socket, env, os.Geteuid()))
}

// Dial connects to the first candidate whose server runs as root, as this user or as the owner of process 1, and returns a client
// for it. It takes at most 2 seconds for each candidate. If this user may not open one of the candidates, the error is
// ErrNotAllowed, otherwise ErrUnreachable.
func Dial(candidates []string) (*Client, error) {
	c := searchingClient(func() []string { return candidates })
	if err := c.CheckConnection(); err != nil {
		return nil, err
	}
	c.candidatePaths = nil // Later requests must go to the same hinit.
	return c, nil
}

func searchingClient(places func() []string) *Client {
	c := New("")
	c.candidatePaths, c.socketSearched = places, true
	return c
}

// Socket returns the path of the control socket, or "" if no hinit has been found yet.
func (c *Client) Socket() string { return *c.socket.Load() }

// CheckConnection connects to hinit and closes the connection at once. It shows early whether the caller can connect.
func (c *Client) CheckConnection() error {
	conn, err := c.connect(context.Background())
	if err != nil {
		err.Action = "reach hinit"
		return err
	}
	_ = conn.Close() // Nothing was sent on the connection.
	return nil
}

// connect returns a new connection for a request.
func (c *Client) connect(ctx context.Context) (net.Conn, *client.Error) {
	if known := c.Socket(); known != "" {
		conn, err := c.open(ctx, known)
		if err == nil || c.candidatePaths == nil || err.Kind != client.KindUnreachable {
			return conn, err
		}
	}
	var failed *client.Error
	var tried []string
	for _, socket := range c.candidatePaths() {
		tried = append(tried, strconv.Quote(socket))
		conn, err := c.open(ctx, socket)
		if err == nil {
			c.socket.Store(&socket)
			return conn, nil
		}
		if failed == nil || err.Kind == client.KindNotAllowed && failed.Kind != client.KindNotAllowed {
			failed = err
		}
	}
	switch {
	case failed == nil:
		failed = &client.Error{Kind: client.KindUnreachable, Message: "there is no socket to look for; set HINIT_RUNTIME_DIR"}
	case failed.Kind == client.KindUnreachable && len(tried) > 1:
		failed.Message = fmt.Sprintf("no hinit listens on any of %s; is it running here?", strings.Join(tried, ", "))
	}
	return nil, failed
}

// open connects to the hinit that listens on socket. If the socket comes from a search or is abstract, it also checks that this
// user may trust the server.
func (c *Client) open(ctx context.Context, socket string) (net.Conn, *client.Error) {
	conn, err := connect(ctx, socket)
	if err == nil && (c.socketSearched || strings.HasPrefix(socket, "@")) {
		if err = checkServer(conn, !strings.HasPrefix(socket, "/proc/")); err != nil {
			_ = conn.Close() // Nothing was sent on the connection.
		}
	}
	switch {
	case err == nil:
		return conn, nil
	case errors.Is(err, fs.ErrPermission):
		message := fmt.Sprintf("this user may not open %q; ask as root or as the agent's user", socket)
		return nil, &client.Error{Kind: client.KindNotAllowed, Message: message, Cause: err}
	}
	message := fmt.Sprintf("no hinit listens on %q (%v); is it running here?", socket, withoutAddress(err))
	if errors.Is(err, syscall.EAGAIN) {
		message = fmt.Sprintf("too many others wait at %q for a connection; try again, or end what connects", socket)
	}
	return nil, &client.Error{Kind: client.KindUnreachable, Message: message, Cause: err}
}

// connect connects to a Unix socket. If the queue of the server is full, it waits for a place until the deadline of ctx, at most
// for connectTimeout. net.Dial would fail at once, and an agent can keep the queue full. Cancelling ctx doesn't end the wait.
func connect(ctx context.Context, socket string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), socket)
	defer f.Close() // net.FileConn uses a copy of the descriptor.
	deadline, _ := ctx.Deadline()
	for err = syscall.EINTR; errors.Is(err, syscall.EINTR); {
		limit := syscall.NsecToTimeval(int64(max(time.Until(deadline), time.Millisecond))) // At least 1 ms, because 0 means no limit (socket(7)).
		if err = syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, syscall.SO_SNDTIMEO, &limit); err == nil {
			err = syscall.Connect(fd, &syscall.SockaddrUnix{Name: socket})
		}
	}
	if err != nil {
		return nil, err
	}
	return net.FileConn(f)
}

// checkServer returns an error unless the server runs as root, as this user, or as the owner of process 1. The check is necessary
// because any process can take an abstract name, and other users can replace a socket in a directory that they can write.
//
// The server must also be the init of this container, because the containers of a pod may share a volume. A server in another PID
// namespace appears with PID 0. If this container has an init, such a server is refused. If here is false, the user has asked for
// the socket of another container, so this second check is skipped.
func checkServer(conn net.Conn, here bool) error {
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return err
	}
	var cred *syscall.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) {
		cred, failed = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	})
	if err = errors.Join(err, failed); err != nil {
		return err
	}
	if here && cred.Pid > 0 && !sameRoot(int(cred.Pid)) {
		return fmt.Errorf("process %d listens there, of another container", cred.Pid)
	}
	if here && cred.Pid == 0 {
		if line, _ := os.ReadFile("/proc/1/cmdline"); IsInit(line) { // Without /proc, line is nil.
			return errors.New("the init of another container listens there; give each container a HINIT_RUNTIME_DIR of its own")
		}
	}
	if cred.Uid == 0 || int(cred.Uid) == os.Geteuid() {
		return nil
	}
	if owner, ok := ownerOf("/proc/1"); ok && owner == int(cred.Uid) {
		return nil
	}
	return fmt.Errorf("uid %d has taken the name", cred.Uid)
}

// withoutAddress removes the address from a network error, because the caller's message already has it.
func withoutAddress(err error) error {
	if op := (*net.OpError)(nil); errors.As(err, &op) {
		return op.Err
	}
	return err
}

// Sockets returns the paths at which a client with the effective uid looks for the control socket, in the order in which an init
// tries them. They are the paths for this user, for root, and for the owner of process 1. It leaves out paths whose directory
// belongs to another user. The sockets may be missing or dead. Any user of the network namespace can take an abstract name
// ("@…"), so check the credentials of the server (SO_PEERCRED), as Dial does.
func Sockets(socket string, env func(string) (string, bool), uid int) []string {
	trusted := []int{uid, 0}
	if owner, ok := ownerOf("/proc/1"); ok {
		trusted = append(trusted, owner)
	}
	var sockets []string
	for _, user := range trusted {
		for _, path := range client.SocketPaths(socket, env, user) {
			owner, exists := ownerOf(filepath.Dir(path))
			if exists && !slices.Contains(trusted, owner) || slices.Contains(sockets, path) {
				continue
			}
			sockets = append(sockets, path)
		}
	}
	// A debug container (kubectl debug --target) sees the processes of the init's container, but has another root directory.
	for _, path := range sockets {
		if !sameRoot(1) {
			sockets = append(sockets, processRoot(1)+path)
		}
	}
	if name := client.AbstractSocket(); name != "" {
		sockets = append(sockets, name)
	}
	return sockets
}

// IsInit reports whether a process runs as an init. cmdline is the content of /proc/PID/cmdline.
func IsInit(cmdline []byte) bool {
	argv := strings.Split(string(cmdline), "\x00")
	switch filepath.Base(argv[0]) {
	case "init", "tini":
		return true
	case "hinit":
		return len(argv) > 1 && (argv[1] == "init" || argv[1] == "run")
	}
	return false
}

func processRoot(pid int) string { return "/proc/" + strconv.Itoa(pid) + "/root" }

// sameRoot reports whether another process has the same root directory as this process. If the kernel doesn't tell, it returns
// true.
func sameRoot(pid int) bool {
	own, err := os.Stat("/")
	other, err2 := os.Stat(processRoot(pid) + "/")
	return err != nil || err2 != nil || os.SameFile(own, other)
}

// ownerOf returns the owner of a file or link, and whether it exists.
func ownerOf(path string) (uid int, exists bool) {
	info, err := os.Lstat(path)
	if err != nil {
		return 0, false
	}
	return int(info.Sys().(*syscall.Stat_t).Uid), true
}

// SandboxSocket returns the path of the sandbox service's socket.
func SandboxSocket(lookup func(string) (string, bool)) string {
	if path, _ := lookup("HINIT_SANDBOX_SOCKET"); path != "" {
		return path
	}
	if dir, _ := lookup("HINIT_RUNTIME_DIR"); dir != "" {
		return filepath.Join(dir, "sandbox.sock")
	}
	return "/run/hinit/sandbox.sock"
}
