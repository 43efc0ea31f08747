package actions_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"hinit/client"
	"hinit/internal/actions"
)

func upService(n int) client.Service {
	return client.Service{Name: "web", State: client.StateUp, Ready: true, RunNumber: uint64(n), PID: 100 + n}
}

func changedService(s client.Service, change func(*client.Service)) client.Service {
	change(&s)
	return s
}

func endedService(n int, cause, state string) client.Service {
	at := time.Unix(1000+int64(n), 0)
	return client.Service{Name: "web", State: state, RunNumber: uint64(n), LastExit: &client.Exit{Cause: cause, EndedAt: at, PID: 100 + n}}
}

func TestEvents(t *testing.T) {
	failing := changedService(upService(1), func(s *client.Service) { s.Checks = []client.Check{{Kind: "alive", State: "failing", Failed: true}} })
	notReady := changedService(upService(1), func(s *client.Service) { s.Ready, s.Checks = false, []client.Check{{Kind: "ready", Failed: true}} })
	held := changedService(upService(1), func(s *client.Service) {
		s.State, s.Ready = client.StateStopping, false
		s.Checks = []client.Check{{Kind: "alive", State: client.CheckOnHold, Failed: true}}
	})
	again := func(s client.Service, n int) client.Service {
		return changedService(upService(n), func(u *client.Service) { u.LastExit = s.LastExit })
	}
	loops := func(s client.Service) client.Service {
		return changedService(s, func(s *client.Service) { s.CrashLoop = true })
	}
	for _, tt := range []struct {
		name   string
		uptime float64
		seen   []client.Service
		want   string
	}{
		{"ready after the boot", 5, []client.Service{upService(1), upService(1)}, "ready,"},
		{"ready long before", 500, []client.Service{upService(1), upService(1), upService(2)}, ",,ready"},
		{"parked before", 500, []client.Service{endedService(1, "config", client.StateParked)}, "parked"},
		{"parked again within a second", 500, []client.Service{endedService(1, "config", client.StateParked), endedService(2, "config", client.StateParked)}, "parked,parked"},
		{"an operator stops a parked one", 500, []client.Service{endedService(1, "config", client.StateParked), endedService(1, "config", client.StateDown)}, "parked,"},
		{"failed", 500, []client.Service{upService(1), endedService(1, "crash", client.StateFailed), endedService(1, "crash", client.StateFailed)}, ",failed,"},
		{"an old end for memory", 500, []client.Service{endedService(1, "oom", client.StateBackoff), again(endedService(1, "oom", ""), 2)}, ",ready"},
		{"for memory twice", 500, []client.Service{upService(1), again(endedService(1, "oom", ""), 2), again(endedService(1, "oom", ""), 2), again(endedService(2, "oom", ""), 3)}, ",oom ready,,oom ready"},
		{"the cause is known later", 500, []client.Service{upService(1), endedService(1, "signal", client.StateBackoff), endedService(1, "oom", client.StateBackoff)}, ",,oom"},
		{
			"a crash loop", 500,
			[]client.Service{upService(1), loops(endedService(1, "crash", client.StateBackoff)), loops(endedService(2, "crash", client.StateBackoff)), upService(3), loops(endedService(3, "crash", client.StateBackoff))},
			",crash-loop,,ready,crash-loop",
		},
		{"a check fails, and recovers, twice", 500, []client.Service{upService(1), failing, failing, upService(1), failing}, ",unhealthy,,,unhealthy"},
		{"a failed check restarts", 500, []client.Service{upService(1), failing, held, endedService(1, "health", client.StateBackoff), again(endedService(1, "health", ""), 2)}, ",unhealthy,,,ready"},
		{"so fast that only the end is seen", 500, []client.Service{upService(1), again(endedService(1, "health", ""), 2), again(endedService(2, "health", ""), 3)}, ",ready unhealthy,ready unhealthy"},
		{"an old end for its health", 500, []client.Service{endedService(1, "health", client.StateBackoff)}, ""},
		{"not ready is not unhealthy", 500, []client.Service{upService(1), notReady, upService(1)}, ",,ready"},
		{"the boot has not come to it", 5, []client.Service{changedService(upService(1), func(s *client.Service) { s.Expected = true }), upService(1)}, ",ready"},
		{"its own", 5, []client.Service{changedService(upService(1), func(s *client.Service) { s.Name = "hinit-actions" })}, ""},
	} {
		marks, got := actions.SeenConditions{}, []string{}
		for i, s := range tt.seen {
			happened, _, _ := marks.Apply(client.StatusChange{IsComplete: i == 0, Init: client.Init{UptimeSeconds: tt.uptime}, Services: []client.Service{s}}, i == 0)
			var events []string
			for _, h := range happened {
				events = append(events, h.Event)
			}
			slices.Sort(events)
			got = append(got, strings.Join(events, " "))
		}
		if got := strings.Join(got, ","); got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestMarksOfWhatIsGoneAreForgotten(t *testing.T) {
	marks := actions.SeenConditions{}
	marks.Apply(client.StatusChange{IsComplete: true, Services: []client.Service{upService(1)}}, true)
	if _, _, changed := marks.Apply(client.StatusChange{Services: []client.Service{upService(1)}}, false); changed {
		t.Error("the same service has changed the marks")
	}
	if _, _, changed := marks.Apply(client.StatusChange{IsComplete: true}, false); !changed || len(marks) != 0 {
		t.Errorf("the marks are %v", marks)
	}
}
