package control

import (
	"net"
	"path/filepath"
	"testing"
	"time"

	"hinit/internal/blocking"
)

// Closing a connection must not take a turn. Close in package net waits for the connection's reader, which may itself
// be waiting for a turn.
func TestClosingWaitsForNoTurn(t *testing.T) {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	peer, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	g := &limitedListener{Listener: l, policy: newPolicy(withDefaults(Options{})), counts: new(connCounts)}
	c, err := g.Accept()
	if err != nil {
		t.Fatal(err)
	}
	free, read, closed := make(chan struct{}), make(chan struct{}), make(chan struct{})
	first := make(chan struct{}, 2)
	go func() {
		defer close(read)
		for {
			if _, err := c.Read(make([]byte, 2)); err != nil {
				return
			}
			first <- struct{}{}
		}
	}()
	if _, err := peer.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	<-first
	// if this time is too short, the test passes without having tested anything
	moment := func() <-chan time.Time { return time.After(100 * time.Millisecond) }
	<-moment() // give the reader time to wait for more bytes
	begun := make(chan struct{}, 1)
	go func() { _ = blocking.Do(blocking.Short, func() error { begun <- struct{}{}; <-free; return nil }) }()
	<-begun
	go func() {
		defer close(closed)
		_ = c.Close()
	}()
	select {
	case <-closed:
	case <-moment(): // the holder keeps the turn so that the reader must wait for it
	}
	_, _ = peer.Write([]byte("x")) // this byte ends the wait of the reader
	close(free)
	for _, end := range []chan struct{}{closed, read} {
		select {
		case <-end:
		case <-time.After(10 * time.Second):
			t.Fatal("who closes and who reads wait for each other")
		}
	}
}
