package control

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"hinit/client"
	"hinit/internal/testkit"
	"hinit/supervisor"
)

// describeChange describes a line of the stream: "whole: a b" for a line with all services, "b" for a change of b.
func describeChange(c client.StatusChange) string {
	names := make([]string, len(c.Services))
	for i, s := range c.Services {
		names[i] = s.Profile + "=" + s.State
	}
	text := strings.Join(names, " ")
	if c.IsComplete {
		return "whole: " + text
	}
	return text
}

func TestTheStatusIsFollowedByWhatChanges(t *testing.T) {
	a, b := newGateway("a", supervisor.Up), newGateway("b", supervisor.Down, setUnwanted)
	core := newFakeBackend(a, b)
	s := serve(t, core, readableByAll)
	var st client.Status
	var got []string
	begin := time.Now()
	err := s.client().Watch(t.Context(), func(c client.StatusChange) error {
		c.Apply(&st)
		got = append(got, describeChange(c))
		switch len(got) {
		case 1:
			core.setServices(a, newGateway("b", supervisor.Starting))
			core.setServices(a, newGateway("b", supervisor.Stopping))
			core.setServices(a, newGateway("b", supervisor.Up))
		case 2:
			core.setServices(a, newGateway("b", supervisor.Up), newGateway("c", supervisor.Up))
		case 3:
			// After the last change, the next line is the periodic one.
		case 4:
			return s.Close(t.Context())
		}
		return nil
	})
	if err != nil || len(got) != 4 {
		t.Fatalf("%q, %v", got, err)
	}
	want := []string{"whole: a=up b=down", "b=up", "whole: a=up b=up c=up", ""}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if took := time.Since(begin); took < 2*minStatusInterval {
		t.Errorf("four lines within %s", took)
	}
	if len(st.Services) != 3 || st.Services[1].State != client.StateUp || st.Init.OrphansReaped != 7 {
		t.Errorf("applied: %+v", st)
	}
}

// When a follower goes away, its connection and slot must become free.
func TestAFollowerLeavesNothing(t *testing.T) {
	core := newFakeBackend(newGateway("a", supervisor.Up))
	s := serve(t, core, readableByAll)
	enough := errors.New("enough")
	for range 3 {
		if err := s.client().Watch(t.Context(), func(client.StatusChange) error { return enough }); !errors.Is(err, enough) {
			t.Fatal(err)
		}
	}
	testkit.Until(t, "all connections are closed", func() bool { return s.connections() == 0 })
	for class := range s.connCounts.waiting {
		if n := s.connCounts.waiting[class].Load(); n != 0 {
			t.Errorf("%d places are still taken", n)
		}
	}
}

// The slot of a follower must become free when its connection ends, even if the client sent a byte too many before. net/http
// does not notice the end of such a connection.
func TestAFollowerThatIsDeadGivesItsPlaceBack(t *testing.T) {
	s := serve(t, newFakeBackend(newGateway("a", supervisor.Up)), readableByAll)
	class := s.policy.classOf(peer{uid: s.policy.ownUID})
	for _, target := range []string{"/v1/events?follow=1", "/v1/runs?follow=1", "/v1/status/follow", "/v1/slots/wait?dir=/x&until=D"} {
		c, err := net.Dial("unix", s.socket)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: hinit\r\n\r\n", target)
		if !strings.Contains(target, "slots") {
			testkit.Until(t, "it has its place", func() bool { return s.connCounts.waiting[class].Load() == 1 })
		}
		fmt.Fprint(c, "x")
		_ = c.Close()
		testkit.Until(t, target+": its place is free", func() bool { return s.connCounts.waiting[class].Load() == 0 && s.connections() == 0 })
	}
}

// Other connections of the same user request status and don't read it. A follower that reads must still get its answers,
// without a refusal.
func TestAFollowerDoesNotWaitForTheSlownessOfOthers(t *testing.T) {
	var all []*supervisor.Service
	for i := range 100 {
		all = append(all, newGateway(fmt.Sprint(i), supervisor.Up, func(v *supervisor.Service) { v.Reason = strings.Repeat("long ", 10_000) }))
	}
	s := serve(t, newFakeBackend(all...), readableByAll)
	begin := time.Now()
	for range 4 { // four answers of 5 MB exceed the buffers; making one takes long under the race detector
		s.openStream(t, "/v1/status/follow")
		s.openStream(t, "/v1/status")
	}
	enough := errors.New("enough")
	var err error
	for range 5 { // the server may cut off a late reader on a busy machine, and the reader then asks again
		if err = s.client().Watch(t.Context(), func(client.StatusChange) error { return enough }); errors.Is(err, enough) {
			break
		}
	}
	if !errors.Is(err, enough) {
		t.Errorf("a reader that reads: %v after %s", err, time.Since(begin))
	}
	for _, m := range s.answerBudgets {
		m.mu.Lock()
		if m.unreadBytes > maxUnreadBytes {
			t.Errorf("%d bytes wait", m.unreadBytes)
		}
		m.mu.Unlock()
	}
}

// A user who may not read logs must get no line of a log in the stream.
func TestWhoMayNotReadLogsFollowsWithoutThem(t *testing.T) {
	exit := &supervisor.Exit{Run: 1, PID: 5, Code: 1, Cause: supervisor.CauseCrash, Tail: []string{"a secret"}}
	v := newGateway("a", supervisor.Backoff, func(v *supervisor.Service) { v.LastExit, v.CrashLoop = exit, true })
	s := serve(t, newFakeBackend(v), readableByAll)
	f := &statusFollower{server: s.Server, client: peer{uid: 4711}}
	change, changed := f.nextChange(t.Context())
	if !changed || len(change.Services) != 1 || len(change.Services[0].LastExit.Tail) != 0 || strings.Contains(change.Services[0].Problem, "secret") {
		t.Errorf("%+v", change)
	}
}

// The stream of statuses must rarely check for unnoticed ends of services. The check reads a file for each service, so with 500
// services an open page would take more than half a percent of a processor.
func TestAnOpenPageSearchesForUnnoticedEndsOnlyNowAndThen(t *testing.T) {
	dead := startZombie(t)
	core, searches, now := newFakeBackend(newGateway("a", supervisor.Up, func(v *supervisor.Service) { v.PID = dead })), 0, time.Now()
	core.update(func() { core.onReap = func(context.Context) error { searches++; return nil } })
	f := statusFollower{server: newServer(core, Options{}), client: peer{}}
	f.server.now = func() time.Time { return now }
	for i := range 11 {
		f.nextChange(t.Context())
		if want := 1 + i/5; searches != want {
			t.Errorf("after %d lines it has searched %d times, want %d", i+1, searches, want)
		}
		now = now.Add(client.WatchInterval)
	}
}
