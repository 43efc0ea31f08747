package promises_test

import (
	"context"
	"io"
	"net"
	"sync"
	"time"
)

// connect opens idle connections. The kernel queues or refuses excess ones.
func (b *testContainer) connect(n int) []net.Conn {
	b.t.Helper()
	var conns []net.Conn
	for range n {
		c, err := net.DialTimeout("unix", b.client.Socket(), time.Second)
		if err == nil {
			conns = append(conns, c)
		}
	}
	return conns
}

func closeAll(conns []net.Conn) {
	for _, c := range conns {
		_ = c.Close()
	}
}

// sendRaw opens a connection and sends data without reading the answer.
func (b *testContainer) sendRaw(text string) net.Conn {
	c, err := net.DialTimeout("unix", b.client.Socket(), time.Second)
	if err != nil {
		return nil
	}
	_ = c.SetWriteDeadline(time.Now().Add(time.Second))
	_, _ = io.WriteString(c, text) // Ignore the error: hinit may close the connection early.
	return c
}

// requestStatusConcurrently requests the status many times concurrently.
func (b *testContainer) requestStatusConcurrently(n int) {
	b.t.Helper()
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			_, _ = b.client.Status(ctx) // Ignore the error: a later check shows whether PID 1 is alive.
		})
	}
	all.Wait()
}
