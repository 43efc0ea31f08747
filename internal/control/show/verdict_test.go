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
		grade HealthGrade
		word  string
		kinds []string
	}{
		{up, GradeHealthy, "", nil},
		{with(func(s *client.Service) { s.Checks = deaf }), GradeDegraded, "deaf", []string{ProblemDeaf}},
		{with(func(s *client.Service) { s.Checks = sick }), GradeDegraded, "check fails", []string{ProblemCheck}},
		{with(func(s *client.Service) { s.Checks, s.Ready = sick, false }), GradeDegraded, "not ready", []string{ProblemNotReady, ProblemCheck}},
		{with(func(s *client.Service) { s.Ready = false }), GradeChanging, "not ready", []string{ProblemNotReady}},
		{with(func(s *client.Service) { s.Problem = "telegram is failed" }), GradeDegraded, "ailing", []string{ProblemOther}},
		{with(func(s *client.Service) { s.Paused = true }), GradeDegraded, "paused", []string{ProblemPaused}},
		{with(func(s *client.Service) { s.CrashLoop = true }), GradeFailed, "crash-loop", []string{ProblemCrashLoop}},
		{client.Service{State: client.StateBackoff, Want: client.WantUp, CrashLoop: true}, GradeFailed, "crash-loop", []string{ProblemCrashLoop, ProblemBackoff}},
		{client.Service{State: client.StateBackoff, Want: client.WantUp}, GradeFailed, "", []string{ProblemBackoff}},
		{client.Service{State: client.StateParked, Want: client.WantUp}, GradeFailed, "", []string{ProblemParked}},
		{client.Service{State: client.StateFailed, Want: client.WantUp}, GradeFailed, "", []string{ProblemFailed}},
		{client.Service{State: client.StateDown, Want: client.WantUp, ServedBy: client.ServedByNone}, GradeFailed, "", []string{ProblemUnserved}},
		{client.Service{State: client.StateDown, Want: client.WantDown}, GradeDown, "", nil},
		// The check found the deafness in the previous run.
		{client.Service{State: client.StateDown, Want: client.WantUp, Checks: deaf}, GradeChanging, "", nil},
		{client.Service{State: client.StateStarting, Want: client.WantUp}, GradeChanging, "", nil},
		{client.Service{State: client.StateKilling, Want: client.WantDown}, GradeChanging, "", nil},
	} {
		if v := VerdictOf(&c.s); v.Grade != c.grade || v.StateRemark != c.word || !slices.Equal(v.Problems, c.kinds) {
			t.Errorf("%+v: %+v, want %d %q %q", c.s, v, c.grade, c.word, c.kinds)
		}
	}
}
