package supervisor

import "time"

// Event is something that happened. The set is closed.
type Event interface {
	// target is the service that an event is for; an event for an unknown service is ignored. "" when there is none.
	target() string
}

// Events the loop feeds to the machine.
type (
	// Add makes a service known, or changes the policy of a known one. It starts when Want is up and its needs are met.
	Add struct {
		Name   string
		Policy Policy
		Want   Want
		Needs  []string // it waits until each of them is met
		// Checked services count as ready only when a Checked event says so, besides what Policy.Announces asks for.
		Checked bool
	}
	// Met says that a need is met, for every service that has it.
	Met struct{ Need string }
	// Remove stops a service and forgets it once it is down.
	Remove struct{ Name string }
	// Evict ends services at once, by KILL, and forgets them: this init may not run them any more.
	Evict struct {
		Names  []string
		Cause  Cause // of the exit of a run that is killed; "" means CauseOperator
		Reason string
	}
	// Start wants a service up, now: a pending delay is skipped and failures are forgotten.
	Start struct{ Name string }
	// Stop wants a service down.
	Stop struct{ Name string }
	// Restart ends a running process and starts the service again at once; a service that is not running is started.
	Restart struct{ Name string }
	// Once wants one run: a service that is not running is started now, and stays down after that run. For one that runs it is
	// Unwant.
	Once struct{ Name string }
	// Unwant wants a service down without ending it. A pending start is dropped.
	Unwant struct{ Name string }
	// Due says when a task is started next by its schedule, and with Now that its time has come. It is skipped unless nothing of the
	// task runs or is about to.
	Due struct {
		Name string
		Next time.Time // zero: it has no schedule any more
		Now  bool
	}
	// Pause stops the running main process, or with Group its process group, with SIGSTOP. Only Pause and Continue say whether a
	// service is paused, until its process ends or is asked to.
	Pause struct {
		Name  string
		Group bool
	}
	// Continue is the opposite of Pause.
	Continue struct {
		Name  string
		Group bool
	}
	// SignalMain signals the running main process, or with Group its process group. If that ends it, it is started again. Signal 0
	// is the stop signal.
	SignalMain struct {
		Name   string
		Signal int
		Group  bool
	}
	// Spawned answers a Spawn or a SpawnFinish.
	Spawned struct {
		Name string
		PID  int
	}
	// SpawnFailed answers a Spawn or a SpawnFinish.
	SpawnFailed struct {
		Name      string
		Error     string
		Permanent bool // trying again without a change is pointless
		Passing   bool // the kernel was short of something, and may not be in a moment
		Code      int  // exit code that a shell would give: 126 or 127
	}
	// Exited says that the main process of a service ended, or its finish command.
	Exited struct {
		Name     string
		PID      int
		Code     int    // -1 when ended by a signal
		Signal   int    // 0 when it exited
		OOM      bool   // the kernel's out-of-memory killer did it
		Leftover bool   // processes it started are still alive
		Strays   string // numbers of living processes that may be of the run and hide it; empty for none
		CPU      time.Duration
		MaxRSS   int64
	}
	// Commanded says that the stop command of a service has ended, or could not be started.
	Commanded struct {
		Name     string
		Run      uint64 // of the command
		Fault    string // "" when it went well
		Leftover bool   // processes it started are still alive
	}
	// Gone says that no process of the service's last run, or of its stop command, is alive any more.
	Gone struct {
		Name string
		Run  uint64
	}
	// Reborn says, with each KILL to all of a run, how many of its processes have ended since its main process. More each time
	// means that others take their place.
	Reborn struct {
		Name  string
		Run   uint64
		Count int
	}
	// Explained gives the exit of a run a better cause: CauseReplaced, or CauseOperator when its profile was renamed or removed.
	Explained struct {
		Name  string
		Run   uint64
		Cause Cause
	}
	// Tailed brings the last log lines of a run.
	Tailed struct {
		Name  string
		Run   uint64
		Lines []string
	}
	// Ready says whether a running service answers, and what else it tells of itself.
	Ready struct {
		Name  string
		Run   uint64
		Ready bool
		Said  string // why it isn't ready, or what is wrong though it is
	}
	// Checked is what the ready and start-up checks of a running service say. Both they and the service itself have to say that it is
	// ready.
	Checked struct {
		Name  string
		Run   uint64
		Ready bool
		Said  string // as in Ready
	}
	// Unhealthy ends a running service, because a check of it has failed for too long.
	Unhealthy struct {
		Name   string
		Run    uint64
		Answer string // what the check said last
		Park   bool   // it is parked instead of started again
	}
	// Hold ends a running service that Policy.Sheds, and keeps it from starting until a Hold without a reason, or an operator, releases it.
	Hold struct{ Name, Reason string }
	// Full lets all services that Policy.Sheds wait before they start, until a Full without a reason.
	Full struct{ Reason string }
	// Told is what a process of a running service tells of itself, see [Loop.Tell].
	Told struct {
		Name            string
		Run             uint64
		Ready, Stopping bool
		Status          string // for people, where HasStatus says so; "" takes it back
		HasStatus       bool
		Extend          time.Duration // how long from now on it still needs to end; 0 for no word about that
	}
	// Inputs says that the files which a parked service depends on have changed.
	Inputs struct{ Name string }
	// Forward passes a signal on to the running main process.
	Forward struct {
		Name   string
		Signal int
	}
	// Remark puts a line into the history; Service may be "". Key and Data belong to a notice.
	Remark struct{ Service, Text, Key, Data string }
	// Shutdown ends everything within the machine's budget. A second one kills at once.
	Shutdown struct {
		Code   int // exit code of the container unless the CMD has one
		Reason string
	}
	// Swept says that this process has no child left.
	Swept struct{}
	// Tick only tells the time.
	Tick struct{}
)

func (e Remove) target() string      { return e.Name }
func (e Start) target() string       { return e.Name }
func (e Stop) target() string        { return e.Name }
func (e Restart) target() string     { return e.Name }
func (e Once) target() string        { return e.Name }
func (e Unwant) target() string      { return e.Name }
func (e Due) target() string         { return e.Name }
func (e Pause) target() string       { return e.Name }
func (e Continue) target() string    { return e.Name }
func (e SignalMain) target() string  { return e.Name }
func (e Spawned) target() string     { return e.Name }
func (e SpawnFailed) target() string { return e.Name }
func (e Exited) target() string      { return e.Name }
func (e Commanded) target() string   { return e.Name }
func (e Gone) target() string        { return e.Name }
func (e Reborn) target() string      { return e.Name }
func (e Explained) target() string   { return e.Name }
func (e Tailed) target() string      { return e.Name }
func (e Ready) target() string       { return e.Name }
func (e Checked) target() string     { return e.Name }
func (e Unhealthy) target() string   { return e.Name }
func (e Told) target() string        { return e.Name }
func (e Inputs) target() string      { return e.Name }
func (e Forward) target() string     { return e.Name }

func (Add) target() string      { return "" }
func (Met) target() string      { return "" }
func (e Hold) target() string   { return e.Name }
func (Evict) target() string    { return "" }
func (Full) target() string     { return "" }
func (Remark) target() string   { return "" }
func (Shutdown) target() string { return "" }
func (Swept) target() string    { return "" }
func (Tick) target() string     { return "" }

// Action is something the loop has to do, in the order given. The set is closed.
type Action interface{ action() }

// Actions the machine asks for.
type (
	// Spawn starts the main process; the loop answers with Spawned or SpawnFailed before any other event.
	Spawn struct {
		Name string
		Run  uint64
	}
	// SpawnFinish starts the finish command of a service, as a run of its own, and is answered like Spawn.
	SpawnFinish struct {
		Name string
		Run  uint64
		Exit Exit // of the run that it finishes
	}
	// SpawnStop starts the stop command of a service, as a run of its own. Commanded says when it is over.
	SpawnStop struct {
		Name string
		Run  uint64
	}
	// Signal goes to processes of a run.
	Signal struct {
		Name   string
		Run    uint64
		Signal int
		Scope  Scope
		Wake   bool // SIGCONT follows: a stopped process acts on SIGKILL only
	}
	// SignalRest goes to every other descendant of this process; nothing is supervised any more by then.
	SignalRest struct{ Signal int }
	// Changed says that the snapshot of a service is out of date.
	Changed struct{ Name string }
	// Note is a record for the history. One that is Dropped says that nothing is to be kept of the service.
	Note struct{ Record Record }
	// Release says that all processes of a service have ended, before the container does. So the file it writes to is not needed
	// any more.
	Release struct{ Name string }
	// End ends the loop with an exit code.
	End struct{ Code int }
)

func (Spawn) action()       {}
func (SpawnFinish) action() {}
func (SpawnStop) action()   {}
func (Signal) action()      {}
func (SignalRest) action()  {}
func (Changed) action()     {}
func (Note) action()        {}
func (Release) action()     {}
func (End) action()         {}
