package web

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"
)

// mostConns is how many connections a listener has at a time; one too many is closed.
const mostConns = 4096

// sendBuffer is how much the kernel keeps for a connection.
const sendBuffer = 64 << 10

// NewHTTPServer returns a server for s with limits for slow and hostile clients.
func NewHTTPServer(s *Server) *http.Server {
	return &http.Server{
		Handler: s, ConnContext: ConnContext, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 15 * time.Second, IdleTimeout: time.Minute,
		MaxHeaderBytes: 16 << 10,
	}
}

// Listen opens a listener: "HOST:PORT", or "unix:PATH", a socket that only this user can open. A dead socket is replaced.
func Listen(ctx context.Context, address string) (net.Listener, error) {
	path, isSocket := strings.CutPrefix(address, "unix:")
	if !isSocket {
		return listen(ctx, "tcp", address)
	}
	if conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "unix", path); err == nil {
		_ = conn.Close()
		return nil, fmt.Errorf("another program listens on %q", path)
	} else if errors.Is(err, syscall.ECONNREFUSED) {
		if info, err := os.Lstat(path); err == nil && info.Mode()&fs.ModeSocket != 0 {
			_ = os.Remove(path)
		}
	}
	old := syscall.Umask(0o177) // no user may connect before a chmod
	defer syscall.Umask(old)
	return listen(ctx, "unix", path)
}

func listen(ctx context.Context, network, address string) (net.Listener, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &bounded{Listener: l, conns: newPlaces(mostConns)}, nil
}

// Loopback says whether only this machine can reach an address.
func Loopback(address string) bool {
	if strings.HasPrefix(address, "unix:") {
		return true
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

// bounded is a listener with a limit of connections, in all and of one remote. It closes a connection beyond that, so that no client waits
// for a slow one.
type bounded struct {
	net.Listener
	conns *places
}

// Accept implements net.Listener.
func (b *bounded) Accept() (net.Conn, error) {
	for {
		c, err := b.Listener.Accept()
		if err != nil {
			return nil, err
		}
		key := owner // a Unix socket
		if c.RemoteAddr().Network() != "unix" {
			key = remoteOf(c.RemoteAddr().String())
		}
		if b.conns.take(key) {
			if tcp, is := c.(*net.TCPConn); is {
				_ = tcp.SetWriteBuffer(sendBuffer) // of the kernel, whose default grows to megabytes for who takes nothing
			}
			return &counted{Conn: c, close: sync.OnceValue(func() error {
				b.conns.leave(key)
				return c.Close()
			})}, nil
		}
		_ = c.Close()
	}
}

// counted gives its place back when it is closed.
type counted struct {
	net.Conn
	close func() error
}

// Close implements net.Conn.
func (c *counted) Close() error { return c.close() }
