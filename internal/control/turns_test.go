package control

import (
	"net"
	"path/filepath"
	"testing"
	"time"

	"hinit/internal/blocking"
	"hinit/internal/testkit"
)

// Package net closes a connection only after its reader has returned, and the reader may wait for a turn. So the close must not
// wait for the same turn.
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
	begun, free, closed := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() { _ = blocking.Do(blocking.ShortCalls, func() error { close(begun); <-free; return nil }) }()
	<-begun // all turns of ShortCalls are taken now, because the tests run with one turn
	go func() {
		defer close(closed)
		_ = c.Close()
	}()
	select {
	case <-closed:
	case <-time.After(testkit.Patience):
		t.Error("the close waits for a turn")
	}
	close(free)
	<-closed
}
