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

// mostConns limits the connections of a listener. It closes further ones.
const mostConns = 4096

// sendBuffer limits the kernel's memory for a connection.
const sendBuffer = 64 << 10

// NewHTTPServer returns a server for s with limits for slow and hostile clients.
func NewHTTPServer(s *Server) *http.Server {
	return &http.Server{
		Handler: s, ConnContext: ConnContext, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 15 * time.Second, IdleTimeout: time.Minute,
		MaxHeaderBytes: 16 << 10,
	}
}

// Listen opens a listener: "HOST:PORT", or "unix:PATH", a socket that only this user can open. It replaces a dead socket.
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
	old := syscall.Umask(0o177) // so that no user can connect before a chmod
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

// Loopback reports whether only this machine can reach an address.
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

// bounded is a listener with a limit of connections, in total and for each remote. It closes further connections, so no client has
// to wait for a slow one.
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
		key := owner // for a Unix socket
		if c.RemoteAddr().Network() != "unix" {
			key = remoteOf(c.RemoteAddr().String())
		}
		if b.conns.take(key) {
			if tcp, is := c.(*net.TCPConn); is {
				_ = tcp.SetWriteBuffer(sendBuffer) // the kernel's default grows to megabytes for a client that does not read
			}
			return &counted{Conn: c, close: sync.OnceValue(func() error {
				b.conns.leave(key)
				return c.Close()
			})}, nil
		}
		_ = c.Close()
	}
}

// counted is a connection whose close releases its place.
type counted struct {
	net.Conn
	close func() error
}

// Close implements net.Conn.
func (c *counted) Close() error { return c.close() }
