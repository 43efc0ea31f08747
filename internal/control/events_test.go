package control

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"hinit/client"
	"hinit/internal/testkit"
	"hinit/supervisor"
)

func churnServices(t *testing.T, core *loopBackend, rounds int) {
	t.Helper()
	for range rounds {
		for _, verb := range []client.Verb{client.VerbStart, client.VerbStop} {
			if err := core.Command(t.Context(), verb, "gateway-x"); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func parseSeqs(t *testing.T, body string) (list []uint64, lost uint64) {
	t.Helper()
	for line := range strings.Lines(body) {
		var e client.Event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if e.LostCount > 0 {
			lost += e.LostCount
			continue
		}
		list = append(list, e.Seq)
	}
	return list, lost
}

func TestEventsOfThePast(t *testing.T) {
	core := newLoopBackend(t)
	s := serve(t, core, readableByAll)
	core.addService(t, "x", supervisor.WantUp)
	newest := core.History().Last()
	if newest != 3 { // the events are: registered, starting, up
		t.Fatalf("%d events", newest)
	}
	for _, tt := range []struct {
		query, want string
	}{
		{"", "[1 2 3]"},
		{"?since=0", "[1 2 3]"},
		{"?since=1", "[2 3]"},
		{"?since=3", "[]"},
		{"?last=0", "[]"},
		{"?last=1", "[3]"},
		{"?last=99", "[1 2 3]"},
		{"?since=2&last=2&follow=0", "[3]"},
	} {
		code, body := s.curlAs(t, -1, "/v1/events"+tt.query)
		if got, lost := parseSeqs(t, body); code != 200 || lost != 0 || fmt.Sprint(got) != tt.want {
			t.Errorf("%s: %d %v, lost %d", tt.query, code, got, lost)
		}
	}
	_, body := s.curlAs(t, -1, "/v1/events?last=1")
	var e map[string]any
	if err := json.Unmarshal([]byte(body), &e); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]any{
		"seq": 3.0, "service": "gateway-x", "from": "starting", "to": "up", "reason": "started", "pid": float64(4<<20 + 1), "exit": nil,
	} {
		if got, ok := e[key]; !ok || got != want {
			t.Errorf("%s: got %v, want %v", key, got, want)
		}
	}
	if _, ok := e["lost"]; ok || len(e) != 8 {
		t.Errorf("keys: %v", e)
	}
}

func TestAnExitIsAnEventWithItsCause(t *testing.T) {
	core := newLoopBackend(t)
	s := serve(t, core, readableByAll)
	core.addService(t, "x", supervisor.WantUp)
	core.procs.end(core.Snapshot().Find("gateway-x").Run, 78, 0)
	testkit.Until(t, "parked", func() bool { return core.Snapshot().Find("gateway-x").State == supervisor.Parked })
	var exit *client.Exit
	err := s.client().Events(t.Context(), client.EventOptions{}, func(e client.Event) error {
		if e.Exit != nil {
			exit = e.Exit
		}
		return nil
	})
	if err != nil || exit == nil || *exit.Code != 78 || exit.Signal != nil || exit.Cause != "config" || exit.Tail == nil {
		t.Errorf("%+v, %v", exit, err)
	}
}

func TestDroppedEventsAreReported(t *testing.T) {
	core := newLoopBackend(t)
	s := serve(t, core, readableByAll)
	core.addService(t, "x", supervisor.WantDown)
	for core.History().Last() < 2000 {
		churnServices(t, core, 50)
	}
	testkit.Until(t, "down", func() bool { return core.Snapshot().Find("gateway-x").State == supervisor.Down })
	newest := core.History().Last()
	_, body := s.curlAs(t, -1, "/v1/events?since=0")
	got, lost := parseSeqs(t, body)
	if lost != newest-1024 || len(got) != 1024 || got[0] != lost+1 || !strings.HasPrefix(body, `{"lost":`) {
		t.Errorf("since 0: lost %d, got %d", lost, len(got))
	}
	_, body = s.curlAs(t, -1, "/v1/events")
	if got, lost := parseSeqs(t, body); lost != 0 || len(got) != 1024+8 { // the whole ring, and older events of the service
		t.Errorf("everything: lost %d, got %d", lost, len(got))
	}
	for _, last := range []int{0, 1, 1024, 1027, 5000} {
		_, body = s.curlAs(t, -1, fmt.Sprintf("/v1/events?last=%d", last))
		if got, _ := parseSeqs(t, body); len(got) != min(last, 1024+8) || last > 0 && got[len(got)-1] != newest {
			t.Errorf("the last %d: got %d", last, len(got))
		}
	}
}

func TestFollowingWithCurl(t *testing.T) {
	core := newLoopBackend(t)
	s := serve(t, core, readableByAll)
	core.addService(t, "x", supervisor.WantDown)
	path, err := exec.LookPath("curl")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	next := core.History().Last() + 1
	url := fmt.Sprintf("http://hinit/v1/events?since=%d&follow=1", next-1)
	cmd := exec.CommandContext(t.Context(), path, "-sSN", "--unix-socket", s.socket, url)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	testkit.Until(t, "connected", func() bool { return s.connections() == 1 })
	lines := bufio.NewScanner(out)
	for range 3 {
		churnServices(t, core, 1)
		testkit.Until(t, "down", func() bool { return core.Snapshot().Find("gateway-x").State == supervisor.Down })
		for last := core.History().Last(); next <= last; next++ {
			if !lines.Scan() {
				t.Fatalf("the stream ended: %v", lines.Err())
			}
			if got, _ := parseSeqs(t, lines.Text()); len(got) != 1 || got[0] != next {
				t.Fatalf("got %s, want %d", lines.Text(), next)
			}
		}
	}
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if lines.Scan() {
		t.Errorf("after the end: %s", lines.Text())
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("curl does not find the stream well ended: %v", err)
	}
}

func (s *testServer) connections() (n int32) {
	for i := range s.connCounts.open {
		n += s.connCounts.open[i].Load()
	}
	return n
}

func TestTheClientFollows(t *testing.T) {
	core := newLoopBackend(t)
	s := serve(t, core, readableByAll)
	core.addService(t, "x", supervisor.WantUp)
	ctx, cancel := context.WithCancel(t.Context())
	var got []uint64
	err := s.client().Events(ctx, client.EventOptions{MaxPast: 1, Follow: true}, func(e client.Event) error {
		got = append(got, e.Seq)
		switch len(got) {
		case 1:
			churnServices(t, core, 1)
		case 3:
			cancel()
		}
		return nil
	})
	if !errors.Is(err, context.Canceled) || len(got) < 3 || got[0] != 3 || got[2] != 5 {
		t.Errorf("%v, %v", got, err)
	}
	testkit.Until(t, "the connection is closed", func() bool { return s.connections() == 0 })
}

func TestAFollowerThatDoesNotReadIsDroppedAndHoldsUpNobody(t *testing.T) {
	core := newLoopBackend(t)
	s := serve(t, core, readableByAll, func(s *Server) { s.sendTimeout = 100 * time.Millisecond })
	core.addService(t, "x", supervisor.WantDown)
	c, err := net.Dial("unix", s.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, "GET /v1/events?follow=1 HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	testkit.Until(t, "connected", func() bool { return s.connections() == 1 })
	testkit.Until(t, "dropped", func() bool {
		churnServices(t, core, 20)
		return s.connections() == 0
	})
	if _, err := s.client().Health(t.Context()); err != nil {
		t.Error(err)
	}
}
