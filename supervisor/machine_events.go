package supervisor

import "time"

// Event is an input of the machine. The set of events is closed.
type Event interface {
	// target is the service that the event is for, "" when it is for none. Step ignores events for unknown services.
	target() string
}

// Events that the loop feeds to the machine.
type (
	// Add registers a service, or changes the policy of a known one. It starts when Want is up and its needs are met.
	Add struct {
		Name   string
		Policy Policy
		Want   Want
		Needs  []string // a Met event must come for each of them before it starts
		// Checked services are ready only after a Checked event, and after a Ready event if Policy.Announces is set.
		Checked bool
	}
	// NeedMet says that a need is met. It is for all services that have this need.
	NeedMet struct{ Need string }
	// Remove stops a service and forgets it once it is down.
	Remove struct{ Name string }
	// Evict kills services at once, without a grace, and forgets them, because this init may not run them any more.
	Evict struct {
		Names  []string
		Cause  Cause // cause of death of their runs; "" means CauseOperator
		Reason string
	}
	// Start wants a service up at once: it skips a restart delay and forgets failures.
	Start struct{ Name string }
	// Stop wants a service down.
	Stop struct{ Name string }
	// Restart ends a running process and starts the service again at once; a service that is not running is started.
	Restart struct{ Name string }
	// Once wants one run. A service that is not running starts now, and stays down after that run. For a running service it is
	// the same as Unwant.
	Once struct{ Name string }
	// Unwant sets the desired state to down and drops a pending start. A running process goes on.
	Unwant struct{ Name string }
	// Scheduled tells when the schedule of a task starts it next. With Now it starts the task, unless a run of it is under way or about
	// to start.
	Scheduled struct {
		Name string
		Next time.Time // zero: it has no schedule any more
		Now  bool
	}
	// Pause stops the main process, or with Group its process group, by SIGSTOP. The service counts as paused until Continue, or
	// until it ends or is asked to end.
	Pause struct {
		Name  string
		Group bool
	}
	// Continue undoes Pause, by SIGCONT.
	Continue struct {
		Name  string
		Group bool
	}
	// SignalMain sends a signal to the main process, or with Group to its process group. A service that ends by it is restarted.
	// Signal 0 stands for the stop signal.
	SignalMain struct {
		Name   string
		Signal int
		Group  bool
	}
	// Spawned reports that a Spawn or a SpawnFinish succeeded.
	Spawned struct {
		Name string
		PID  int
	}
	// SpawnFailed reports that a Spawn or a SpawnFinish failed.
	SpawnFailed struct {
		Name      string
		Error     string
		Permanent bool // another try can't succeed without a change
		Passing   bool // the kernel lacked a resource that it may have again soon
		Code      int  // the exit code of a shell for this error: 126 or 127
	}
	// Exited reports the end of a main process or of a finish command.
	Exited struct {
		Name     string
		PID      int
		Code     int    // -1 when ended by a signal
		Signal   int    // 0 when it exited
		OOM      bool   // the kernel's out-of-memory killer killed it
		Leftover bool   // descendants of it are alive
		Strays   string // PIDs of living processes that may belong to the run but hide it; "" for none
		CPU      time.Duration
		MaxRSS   int64
	}
	// StopCommandEnded reports that the stop command of a service has ended, or could not start.
	StopCommandEnded struct {
		Name     string
		Run      uint64 // run of the stop command
		Fault    string // "" when it succeeded
		Leftover bool   // descendants of it are alive
	}
	// Gone reports that all processes of the last run of a service, or of its stop command, have ended.
	Gone struct {
		Name string
		Run  uint64
	}
	// DescendantsEnded follows a SIGKILL to a tree. It reports how many descendants have ended since the main process did. A growing number
	// means that new processes replace the killed ones.
	DescendantsEnded struct {
		Name  string
		Run   uint64
		Count int
	}
	// CorrectCause corrects the cause of an exit to CauseReplaced, or to CauseOperator when the profile was renamed or removed.
	CorrectCause struct {
		Name  string
		Run   uint64
		Cause Cause
	}
	// LastLines delivers the last lines of output of a run.
	LastLines struct {
		Name  string
		Run   uint64
		Lines []string
	}
	// Ready reports whether a running service is ready, in the words of the service itself.
	Ready struct {
		Name  string
		Run   uint64
		Ready bool
		Text  string // why it isn't ready, or a warning although it is ready
	}
	// Checked reports the result of the ready and start-up checks of a running service. A checked service is ready only if Ready
	// says so too.
	Checked struct {
		Name  string
		Run   uint64
		Ready bool
		Text  string // as in Ready
	}
	// Unhealthy stops a running service, because a check of it has failed for too long.
	Unhealthy struct {
		Name   string
		Run    uint64
		Answer string // last answer of the check
		Park   bool   // park the service; otherwise it is restarted
	}
	// Hold ends a running service with Policy.Sheddable, and keeps it from starting. A Hold without a reason, or an operator,
	// releases it. With Disk its profile has too much on the disk: then Policy.Sheddable is not needed.
	Hold struct {
		Name, Reason string
		Disk         bool
	}
	// HoldStarts makes all services with Policy.Sheddable wait before they start. A HoldStarts without a reason releases them.
	HoldStarts struct{ Reason string }
	// Notified is a message of sd_notify from a process of a running service, see [Loop.Tell].
	Notified struct {
		Name            string
		Run             uint64
		Ready, Stopping bool
		Status          string // a line for people, valid if HasStatus is set; "" clears it
		HasStatus       bool
		Extend          time.Duration // time it still needs to end, from now; 0 when the message says nothing about it
	}
	// InputsChanged reports that the input files of a parked service have changed.
	InputsChanged struct{ Name string }
	// Forward sends a signal that PID 1 got to the main process.
	Forward struct {
		Name   string
		Signal int
	}
	// Remark adds a line to the history. Service may be "". Key and Data are set for a notice only.
	Remark struct{ Service, Text, Key, Data string }
	// Shutdown ends the container within the machine's budget. A second one kills everything at once.
	Shutdown struct {
		Code   int // exit code of the container, unless the CMD has one
		Reason string
	}
	// Swept reports that this process has no child left.
	Swept struct{}
	// Tick reports the time only, for deadlines.
	Tick struct{}
)

func (e Remove) target() string           { return e.Name }
func (e Start) target() string            { return e.Name }
func (e Stop) target() string             { return e.Name }
func (e Restart) target() string          { return e.Name }
func (e Once) target() string             { return e.Name }
func (e Unwant) target() string           { return e.Name }
func (e Scheduled) target() string        { return e.Name }
func (e Pause) target() string            { return e.Name }
func (e Continue) target() string         { return e.Name }
func (e SignalMain) target() string       { return e.Name }
func (e Spawned) target() string          { return e.Name }
func (e SpawnFailed) target() string      { return e.Name }
func (e Exited) target() string           { return e.Name }
func (e StopCommandEnded) target() string { return e.Name }
func (e Gone) target() string             { return e.Name }
func (e DescendantsEnded) target() string { return e.Name }
func (e CorrectCause) target() string     { return e.Name }
func (e LastLines) target() string        { return e.Name }
func (e Ready) target() string            { return e.Name }
func (e Checked) target() string          { return e.Name }
func (e Unhealthy) target() string        { return e.Name }
func (e Notified) target() string         { return e.Name }
func (e InputsChanged) target() string    { return e.Name }
func (e Forward) target() string          { return e.Name }

func (Add) target() string        { return "" }
func (NeedMet) target() string    { return "" }
func (e Hold) target() string     { return e.Name }
func (Evict) target() string      { return "" }
func (HoldStarts) target() string { return "" }
func (Remark) target() string     { return "" }
func (Shutdown) target() string   { return "" }
func (Swept) target() string      { return "" }
func (Tick) target() string       { return "" }

// Action is an output of the machine. The loop carries actions out in the order given. The set of actions is closed.
type Action interface{ action() }

// Actions that the machine asks the loop for.
type (
	// Spawn starts the main process. The loop answers with Spawned or SpawnFailed, before any other event.
	Spawn struct {
		Name string
		Run  uint64
	}
	// SpawnFinish starts the finish command of a service as a run with its own number. The loop answers as for Spawn.
	SpawnFinish struct {
		Name string
		Run  uint64
		Exit Exit // of the run before the finish command
	}
	// SpawnStop starts the stop command of a service as a run with its own number. The loop sends StopCommandEnded when it has ended.
	SpawnStop struct {
		Name string
		Run  uint64
	}
	// Signal sends a signal to processes of a run.
	Signal struct {
		Name   string
		Run    uint64
		Signal int
		Scope  Scope
		Wake   bool // send SIGCONT too: a stopped process reacts to SIGKILL only
	}
	// SignalRest sends a signal to every other descendant of this process. No service is alive by then.
	SignalRest struct{ Signal int }
	// Changed says that the published view of a service is out of date.
	Changed struct{ Name string }
	// Note adds a record to the history. If the record is Dropped, the loop forgets the service.
	Note struct{ Record Record }
	// Release says, during a shutdown, that all processes of a service have ended. The loop may close the pipe that they wrote
	// to.
	Release struct{ Name string }
	// End ends the loop. Run returns the code.
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
