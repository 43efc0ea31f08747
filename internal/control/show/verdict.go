package show

import (
	"cmp"
	"slices"

	"hinit/client"
)

// HealthGrade says how well a service works.
type HealthGrade int

// The grades, from best to worst. An ailing service is up but doesn't do its work. A service in trouble doesn't run and may not
// start again. The web page and hinit top call both "in trouble", see [ServiceVerdict.NeedsAttention].
const (
	GradeHealthy  HealthGrade = iota
	GradeDown                 // the service is down, as ordered
	GradeChanging             // the service is starting or stopping
	GradeDegraded             // the service is up, with a problem
	GradeFailed               // the service crashes, or isn't started again
)

// Kinds of problems, with their names in the metric hinit_service_problem.
const (
	ProblemFailed    = "failed"     // the service can't be started as configured
	ProblemParked    = "parked"     // the service stays down until an operator starts it or its configuration changes
	ProblemCrashLoop = "crash-loop" // the service has exited too often soon after a start
	ProblemBackoff   = "backoff"    // the service has ended and waits for its next start
	ProblemUnserved  = "unserved"   // the profile is wanted, and no gateway serves it
	ProblemDeaf      = "deaf"       // the gateway is up and takes no messages
	ProblemCheck     = "check"      // a health check fails
	ProblemPaused    = "paused"     // a signal such as SIGSTOP has stopped the process
	ProblemOther     = "other"      // the service is ready, with a problem that the note describes
	ProblemNotReady  = "not-ready"  // the service is up and has not reported that it is ready
)

// ServiceVerdict says how well a service works. `hinit status`, `hinit top`, the metrics, the health check and the web page share
// it, so that they agree.
type ServiceVerdict struct {
	Grade       HealthGrade
	StateRemark string   // addition to the state, such as "deaf"; may be ""
	Problems    []string // kinds of problems of the service, the worst first
	IsWorking   bool     // the service is up and does its work, although a check may fail
}

// NeedsAttention reports whether the service needs attention.
func (v ServiceVerdict) NeedsAttention() bool { return v.Grade >= GradeDegraded }

// VerdictOf returns the verdict on a service.
func VerdictOf(s *client.Service) (v ServiceVerdict) {
	is := func(kind string, grade HealthGrade, so bool) {
		if so {
			v.Problems, v.Grade = append(v.Problems, kind), max(v.Grade, grade)
		}
	}
	up := s.State == client.StateUp
	fails := func(deaf bool) bool {
		return up && slices.ContainsFunc(s.Checks, func(c client.Check) bool { return c.Failed && (c.Type == ProblemDeaf) == deaf })
	}
	switch {
	case up:
	case s.State == client.StateDown && s.Want != client.WantUp:
		v.Grade = GradeDown
	default:
		v.Grade = GradeChanging
	}
	is(ProblemFailed, GradeFailed, s.State == client.StateFailed)
	is(ProblemParked, GradeFailed, s.State == client.StateParked)
	is(ProblemCrashLoop, GradeFailed, s.CrashLoop)
	is(ProblemBackoff, GradeFailed, s.State == client.StateBackoff)
	is(ProblemUnserved, GradeFailed, s.ServedBy == client.ServedByNone)
	is(ProblemDeaf, GradeDegraded, fails(true))
	is(ProblemPaused, GradeDegraded, up && s.Paused)
	is(ProblemNotReady, GradeChanging, up && !s.Ready)
	is(ProblemCheck, GradeDegraded, fails(false))
	is(ProblemOther, GradeDegraded, up && s.Ready && s.Problem != "" && len(v.Problems) == 0)
	v.IsWorking = up && !slices.ContainsFunc(v.Problems, func(kind string) bool { return kind != ProblemCheck && kind != ProblemOther })
	words := map[string]string{
		ProblemCrashLoop: "crash-loop", ProblemDeaf: "deaf", ProblemPaused: "paused", ProblemNotReady: "not ready", ProblemCheck: "check fails", ProblemOther: "ailing",
	}
	for _, kind := range v.Problems {
		v.StateRemark = cmp.Or(v.StateRemark, words[kind])
	}
	return v
}
