package show

import (
	"slices"
	"testing"

	"hinit/client"
)

func TestADeafGatewayIsNeverWell(t *testing.T) {
	deaf := []client.Check{{Name: "deaf", Type: "deaf", Failed: true}}
	sick := []client.Check{{Name: "health", Type: "http", Failed: true}}
	up := client.Service{State: client.StateUp, Want: client.WantUp, Ready: true}
	with := func(change func(*client.Service)) client.Service {
		s := up
		change(&s)
		return s
	}
	for _, c := range []struct {
		s     client.Service
		grade Grade
		word  string
		kinds []string
	}{
		{up, Well, "", nil},
		{with(func(s *client.Service) { s.Checks = deaf }), Ailing, "deaf", []string{ProblemDeaf}},
		{with(func(s *client.Service) { s.Checks = sick }), Ailing, "check fails", []string{ProblemCheck}},
		{with(func(s *client.Service) { s.Checks, s.Ready = sick, false }), Ailing, "not ready", []string{ProblemNotReady, ProblemCheck}},
		{with(func(s *client.Service) { s.Ready = false }), Changing, "not ready", []string{ProblemNotReady}},
		{with(func(s *client.Service) { s.Problem = "telegram is failed" }), Ailing, "ailing", []string{ProblemOther}},
		{with(func(s *client.Service) { s.Paused = true }), Ailing, "paused", []string{ProblemPaused}},
		{with(func(s *client.Service) { s.CrashLoop = true }), Trouble, "crash-loop", []string{ProblemCrashLoop}},
		{client.Service{State: client.StateBackoff, Want: client.WantUp, CrashLoop: true}, Trouble, "crash-loop", []string{ProblemCrashLoop, ProblemBackoff}},
		{client.Service{State: client.StateBackoff, Want: client.WantUp}, Trouble, "", []string{ProblemBackoff}},
		{client.Service{State: client.StateParked, Want: client.WantUp}, Trouble, "", []string{ProblemParked}},
		{client.Service{State: client.StateFailed, Want: client.WantUp}, Trouble, "", []string{ProblemFailed}},
		{client.Service{State: client.StateDown, Want: client.WantUp, ServedBy: client.ServedByNone}, Trouble, "", []string{ProblemUnserved}},
		{client.Service{State: client.StateDown, Want: client.WantDown}, Off, "", nil},
		// The check found the deafness in the previous run.
		{client.Service{State: client.StateDown, Want: client.WantUp, Checks: deaf}, Changing, "", nil},
		{client.Service{State: client.StateStarting, Want: client.WantUp}, Changing, "", nil},
		{client.Service{State: client.StateKilling, Want: client.WantDown}, Changing, "", nil},
	} {
		if v := VerdictOf(&c.s); v.Grade != c.grade || v.Word != c.word || !slices.Equal(v.Problems, c.kinds) {
			t.Errorf("%+v: %+v, want %d %q %q", c.s, v, c.grade, c.word, c.kinds)
		}
	}
}
