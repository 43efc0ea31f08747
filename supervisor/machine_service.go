package supervisor

import (
	"slices"
	"time"
)

// service is what the machine knows of one service.
type service struct {
	name   string
	policy *Policy  // never changed, only replaced: a step copies the service for undo
	needs  []string // not met yet

	state    State
	since    time.Time
	reason   string    // why it is in this state
	deadline time.Time // zero, or when the state changes by itself

	want     Want
	removing bool
	once     bool  // the start that is due is wanted for one run only
	respawn  bool  // it follows an exit without an order
	place    int64 // of those that wait for their turn the lowest is next; 0 when it waits for none

	run

	command stopCommand

	started bool
	turned  time.Time // when its main process last started or ended
	last    *Exit

	tally
	readiness
	fastExits
	order
}

// tally counts how runs have ended.
type tally struct {
	restarts  int
	exits     causes // all ends, also of starts that failed
	restarted causes // the exits that restarts followed
}

// readiness is what decides, besides what a run says, whether a service is ready, and since when it is.
type readiness struct {
	checked    bool      // its checks have a say
	readySince time.Time // while nothing of it runs: since then
}

// fastExits is what decides how long the next start of a service waits, and when it is parked.
type fastExits struct {
	failures int         // in a row
	quick    int         // short lives in a row that asked for a restart
	recent   []time.Time // fast exits within the window
	looping  bool
	loopTold bool // the history says why
}

// run is the current or last run of a service, its finish command included.
type run struct {
	id       uint64 `reexec:"run"`
	pid      int    // main process, or in state finishing the finish command; 0 if none
	ready    bool
	said     string // by the last Ready
	status   string // by the last Told that had one
	paused   bool
	sent     int   // last signal an operator sent
	asked    Cause // why hinit itself told it to end, "" when it did not
	leftover bool  // its process is gone, others of it are not
	hunt     hunt

	finish    uint64 // number of the finish command's run, 0 before that is started
	permanent bool   // the finish command said not to start it again
	next      settle
	again     bool // start at once instead

	checks
}

// hunt is how the KILLs to a run do.
type hunt struct {
	kills  int
	deaths int  // its processes that have ended since the main process did
	reborn bool // others take their place in spite of the KILLs
}

// stopCommand is the run of the stop command of a service.
type stopCommand struct {
	run uint64    // 0 when nothing of it is alive
	end time.Time // when it and what it left are killed
}

// settle is what follows once everything of a run is gone, its finish command too.
type settle struct {
	state  State
	delay  time.Duration // of a start
	from   time.Time     // when the delay begins
	reason string
}

// deadline is when the service starts, zero when it does not.
func (n settle) deadline() time.Time {
	if n.state != Backoff {
		return time.Time{}
	}
	return n.from.Add(n.delay)
}

// forgive forgets what earlier runs did wrong.
func (s *service) forgive() {
	s.failures, s.quick, s.looping, s.loopTold = 0, 0, false, false
	s.recent = nil
}

// runs reports whether the main process is alive.
func (s *service) runs() bool { return s.pid != 0 && s.state != Finishing }

// live is the run whose processes are alive, if any are. When nothing of the run itself is left it is the stop command's run, and once
// the finish command has begun the finish command's.
func (s *service) live() uint64 {
	switch {
	case s.finish != 0:
		return s.finish
	case s.outlived():
		return s.command.run
	}
	return s.id
}

// outlived reports whether only the stop command, or what it left, is alive.
func (s *service) outlived() bool { return s.command.run != 0 && s.pid == 0 && !s.leftover }

// held reports whether a process of the service is alive.
func (s *service) held() bool { return s.pid != 0 || s.leftover || s.command.run != 0 }

func (s *service) classify(e Exited) Cause {
	switch {
	case s.asked != "":
		return s.asked
	case e.Signal != 0 && e.Signal == s.sent:
		return CauseOperator
	case e.OOM:
		return CauseOOM
	case e.Signal != 0:
		return CauseSignal
	case e.Code != 0 && slices.Contains(s.policy.ParkOn, e.Code):
		return CauseConfig
	case s.policy.success(e.Code), slices.Contains(s.policy.ImmediateOn, e.Code):
		return CauseClean
	}
	return CauseCrash
}

// without returns a slice without some of its elements. The slice itself stays as it is, for undo.
func without[T any](in []T, drop func(T) bool) []T { return slices.DeleteFunc(slices.Clone(in), drop) }

// causes counts exits by their cause. It never changes, so that snapshots can share it.
type causes []CauseCount

// with returns the counts with n more of one cause.
func (c causes) with(cause Cause, n int) causes {
	out := slices.Clone(c)
	i := slices.IndexFunc(out, func(of CauseCount) bool { return of.Cause == cause })
	if i < 0 {
		return append(out, CauseCount{cause, n})
	}
	if out[i].N += n; out[i].N <= 0 {
		out = slices.Delete(out, i, i+1)
	}
	return out
}
