package show

import (
	"cmp"
	"slices"

	"hinit/client"
)

// Grade is how a service is.
type Grade int

// The grades. A service in trouble does not run, or is given up; an ailing one is up and does not do its work.
const (
	Well    Grade = iota
	Off           // down, as it was asked to be
	Coming        // on its way up or down
	Ailing        // up, and something speaks against it
	Trouble       // it crashes, or does not come up by itself
)

// The kinds of problems, as the metric hinit_service_problem names them.
const (
	ProblemFailed    = "failed"     // it cannot be started as it is defined
	ProblemParked    = "parked"     // another start is pointless until its inputs change
	ProblemCrashLoop = "crash-loop" // too many fast exits
	ProblemBackoff   = "backoff"    // it has ended and waits for its next start
	ProblemUnserved  = "unserved"   // its profile is wanted, and no gateway serves it
	ProblemDeaf      = "deaf"       // it is up and does nothing any more
	ProblemCheck     = "check"      // a check fails
	ProblemPaused    = "paused"     // a signal has stopped its process, such as SIGSTOP
	ProblemOther     = "other"      // it is ready, and something is wrong, which the note says
	ProblemNotReady  = "not-ready"  // it is up, and has not said yet that it works
)

// ProblemKinds returns all of them.
func ProblemKinds() []string {
	return []string{
		ProblemFailed, ProblemParked, ProblemCrashLoop, ProblemBackoff, ProblemUnserved, ProblemDeaf, ProblemPaused, ProblemNotReady, ProblemCheck, ProblemOther,
	}
}

// Verdict says how a service is, the same for status, top, the page, metrics and healthcheck.
type Verdict struct {
	Grade    Grade
	Word     string   // what its state does not say, such as "deaf"; "" for nothing
	Problems []string // their kinds, the worst one first
}

// Troubled reports whether somebody has to look after the service.
func (v Verdict) Troubled() bool { return v.Grade >= Ailing }

// Judge decides how a service is.
func Judge(s *client.Service) (v Verdict) {
	is := func(kind string, grade Grade, so bool) {
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
		v.Grade = Off
	default:
		v.Grade = Coming
	}
	is(ProblemFailed, Trouble, s.State == client.StateFailed)
	is(ProblemParked, Trouble, s.State == client.StateParked)
	is(ProblemCrashLoop, Trouble, s.CrashLoop)
	is(ProblemBackoff, Trouble, s.State == client.StateBackoff)
	is(ProblemUnserved, Trouble, s.ServedBy == client.ServedByNone)
	is(ProblemDeaf, Ailing, fails(true))
	is(ProblemPaused, Ailing, up && s.Paused)
	is(ProblemNotReady, Coming, up && !s.Ready)
	is(ProblemCheck, Ailing, fails(false))
	is(ProblemOther, Ailing, up && s.Ready && s.Problem != "" && len(v.Problems) == 0)
	words := map[string]string{
		ProblemCrashLoop: "crash-loop", ProblemDeaf: "deaf", ProblemPaused: "paused", ProblemNotReady: "not ready", ProblemCheck: "check fails", ProblemOther: "ailing",
	}
	for _, kind := range v.Problems {
		v.Word = cmp.Or(v.Word, words[kind])
	}
	return v
}
