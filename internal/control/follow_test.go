package control

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"hinit/client"
	"hinit/internal/testkit"
	"hinit/supervisor"
)

// shape says what a line holds: "whole: a b" or "b".
func shape(c client.StatusChange) string {
	names := make([]string, len(c.Services))
	for i, s := range c.Services {
		names[i] = s.Profile + "=" + s.State
	}
	text := strings.Join(names, " ")
	if c.Whole {
		return "whole: " + text
	}
	return text
}

func TestTheStatusIsFollowedByWhatChanges(t *testing.T) {
	a, b := gateway("a", supervisor.Up), gateway("b", supervisor.Down, unwanted)
	core := newFakeCore(a, b)
	s := serve(t, core, everyone)
	var st client.Status
	var got []string
	begin := time.Now()
	err := s.client().Watch(t.Context(), func(c client.StatusChange) error {
		c.Apply(&st)
		got = append(got, shape(c))
		switch len(got) {
		case 1: // three changes within the gap are one line, which has the last of them
			core.set(a, gateway("b", supervisor.Starting))
			core.set(a, gateway("b", supervisor.Stopping))
			core.set(a, gateway("b", supervisor.Up))
		case 2:
			core.set(a, gateway("b", supervisor.Up), gateway("c", supervisor.Up))
		case 3:
			// Nothing happens: the next line is the beat.
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
	if took := time.Since(begin); took < 2*followGap {
		t.Errorf("four lines within %s", took)
	}
	if len(st.Services) != 3 || st.Services[1].State != client.StateUp || st.Init.Orphans != 7 {
		t.Errorf("applied: %+v", st)
	}
}

// TestAFollowerLeavesNothing: one that went away gives its connection and its place back.
func TestAFollowerLeavesNothing(t *testing.T) {
	core := newFakeCore(gateway("a", supervisor.Up))
	s := serve(t, core, everyone)
	enough := errors.New("enough")
	for range 3 {
		if err := s.client().Watch(t.Context(), func(client.StatusChange) error { return enough }); !errors.Is(err, enough) {
			t.Fatal(err)
		}
	}
	testkit.Until(t, "all connections are closed", func() bool { return s.connections() == 0 })
	for class := range s.places.waits {
		if n := s.places.waits[class].Load(); n != 0 {
			t.Errorf("%d places are still taken", n)
		}
	}
}

// TestWhoMayNotReadLogsFollowsWithoutThem: a stranger gets no line of a log, whole or in part.
func TestWhoMayNotReadLogsFollowsWithoutThem(t *testing.T) {
	exit := &supervisor.Exit{Run: 1, PID: 5, Code: 1, Cause: supervisor.CauseCrash, Tail: []string{"a secret"}}
	v := gateway("a", supervisor.Backoff, func(v *supervisor.Service) { v.LastExit, v.CrashLoop = exit, true })
	s := serve(t, newFakeCore(v), everyone)
	f := &follower{server: s.Server, who: peer{uid: 4711}}
	change, changed := f.next(t.Context())
	if !changed || len(change.Services) != 1 || len(change.Services[0].LastExit.Tail) != 0 || strings.Contains(change.Services[0].Problem, "secret") {
		t.Errorf("%+v", change)
	}
}
