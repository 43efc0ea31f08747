package control

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"

	"hinit/client"
	"hinit/internal/testkit"
	"hinit/supervisor"
)

func (s *testServer) openStream(t *testing.T, target string) *bufio.Reader {
	t.Helper()
	c, err := net.Dial("unix", s.socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: hinit\r\nAccept: text/plain\r\n\r\n", target); err != nil {
		t.Fatal(err)
	}
	return bufio.NewReader(c)
}

// Requests that wait must not use up the connections of a user. Otherwise 128 waiting s6-svwait of the agent would lock out the
// agent's own status.
func TestWhoWaitsDoesNotLockOutWhoAsks(t *testing.T) {
	core := newSlotBackend(client.Slot{Up: true, RunNumber: 3})
	s := serve(t, core, readableByAll)
	class := s.policy.classOf(peer{uid: s.policy.ownUID})
	const wait = "/v1/slots/wait?dir=" + slotDir + "&until=d"
	for range waitLimit() - 1 {
		s.openStream(t, wait)
	}
	s.openStream(t, "/v1/events?follow=1")
	testkit.Until(t, "all wait", func() bool { return s.connCounts.waiting[class].Load() == waitLimit() })
	for _, target := range []string{wait, "/v1/events?follow=1"} {
		answer, err := http.ReadResponse(s.openStream(t, target), nil)
		if err != nil {
			t.Fatal(err)
		}
		var output strings.Builder
		if _, err := bufio.NewReader(answer.Body).WriteTo(&output); err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		if kind := answer.Header.Get(client.ErrorHeader); kind != string(client.KindBusy) || !strings.Contains(output.String(), "s6-svwait") {
			t.Errorf("%s, one too many: %s %q", target, kind, output.String())
		}
	}
	for range maxConns {
		if _, err := s.client().Health(t.Context()); err != nil {
			t.Fatalf("a short question beside them: %v", err)
		}
	}
	core.changeSlot(slotDir, func(slot *client.Slot) { slot.Up = false })
	testkit.Until(t, "those that waited for the slot give their places back", func() bool { return s.connCounts.waiting[class].Load() == 1 })
}

func TestAnOrderInWordsDoesWhatTheCommandLineDoes(t *testing.T) {
	core := newFakeBackend(newGateway("coder", supervisor.Up))
	s := newServer(core, Options{})
	for order, want := range map[string]string{
		"status":          "coder",
		"stop nobody":     "nobody",
		"stop":            "it is none of",
		"stop a b":        "it is none of",
		"reexec":          "it is none of",
		"stop ../../x":    "x",
		"start coder now": "it is none of",
	} {
		if output := s.Order(t.Context(), order); !strings.Contains(output, want) {
			t.Errorf("%q: %q", order, output)
		}
	}
	if s.Order(t.Context(), "start coder"); !strings.Contains(core.receivedCommands(), "start gateway-coder") {
		t.Errorf("asked %q", core.receivedCommands())
	}
}

// With a low limit of descriptors (--ulimit nofile=200), clients must leave PID 1 the descriptors that it needs. Root's status
// must answer at once.
func TestWithFewDescriptorsNoCallerTakesThoseOfPID1(t *testing.T) {
	for _, files := range []uint64{200, 1024} {
		if n := connLimitFor(files) * int32(numClasses); n > 64 {
			t.Errorf("%d connections at a limit of %d", n, files)
		}
	}
	if connLimitFor(1<<20) != maxConns {
		t.Error("there is room for more")
	}
}
