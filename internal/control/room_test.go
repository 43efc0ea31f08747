package control

import (
	"context"
	"strings"
	"testing"
	"time"

	"hinit/client"
)

// Many readers that ask for the whole status and read nothing had PID 1 hold one answer each.
func TestAnswersThatAreNotReadHaveABound(t *testing.T) {
	m := newRooms()[0]
	total := 0
	var gives []func()
	for range 100 {
		ctx, cancel := context.WithCancel(t.Context())
		cancel() // it does not wait
		if give, err := m.keep(ctx, &held{3 << 20, time.Now(), nil}); err == nil {
			total += 3 << 20
			gives = append(gives, give)
		}
	}
	if total == 0 || total > mostUnsent {
		t.Errorf("%d bytes are held", total)
	}
	waits := make(chan error, 1)
	go func() {
		give, err := m.keep(t.Context(), &held{mostUnsent * 2, time.Now(), nil}) // larger than the room: alone
		if err == nil {
			give()
		}
		waits <- err
	}()
	for _, give := range gives {
		give()
	}
	if err := <-waits; err != nil {
		t.Errorf("when all have read: %v", err)
	}
	if m.unsent != 0 {
		t.Errorf("%d bytes are held at the end", m.unsent)
	}
}

// The last lines of 300 agents, of bytes that JSON makes six times as long, were 18 MB in each status.
func TestTheLastLinesOfManyAreShort(t *testing.T) {
	long := strings.Repeat("\x01", 500)
	list := make([]client.Service, 300)
	for i := range list {
		list[i].LastExit = &client.Exit{Tail: make([]string, 20)}
		for k := range list[i].LastExit.Tail {
			list[i].LastExit.Tail[k] = long
		}
	}
	few := list[:2]
	if shorten(few); len(few[0].LastExit.Tail) != 20 || len(few[0].LastExit.Tail[0]) != 500 {
		t.Error("those of two are shortened")
	}
	lines := list[7].LastExit.Tail
	shorten(list)
	out, err := done(list)
	if err != nil {
		t.Fatal(err)
	}
	if len(out.body) > 2<<20 || len(list[299].LastExit.Tail) != fewLines {
		t.Errorf("%d bytes, %d lines", len(out.body), len(list[299].LastExit.Tail))
	}
	if lines[19] != long {
		t.Error("the snapshot's own lines have changed")
	}
}
