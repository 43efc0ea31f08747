package promises_test

import (
	"context"
	"io"
	"net"
	"sync"
	"time"
)

// connect opens connections that send nothing. Connections that hinit does not accept wait in the kernel's queue, or are refused.
func (b *box) connect(n int) []net.Conn {
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

func hangUp(conns []net.Conn) {
	for _, c := range conns {
		_ = c.Close()
	}
}

// say opens a connection, sends something, and does not read the answer.
func (b *box) say(what string) net.Conn {
	c, err := net.DialTimeout("unix", b.client.Socket(), time.Second)
	if err != nil {
		return nil
	}
	_ = c.SetWriteDeadline(time.Now().Add(time.Second))
	_, _ = io.WriteString(c, what) // an error does not matter: hinit may close the connection before the client has sent all
	return c
}

// hammer asks for the status many times at once.
func (b *box) hammer(n int) {
	b.t.Helper()
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			_, _ = b.client.Status(ctx) // an error does not matter: a later check shows whether PID 1 is alive
		})
	}
	all.Wait()
}
