package supervisor

import "time"

// Event is an input of the machine. The set of events is closed.
type Event interface {
	// target returns the name of the service that the event is for, or "" if it is for none. Step ignores unknown services.
	target() string
}

// Events that the loop feeds to the machine.
type (
	// Add registers a service, or changes the policy of a known one. The service starts when Want is up and its needs are met.
	Add struct {
		Name   string
		Policy Policy
		Want   Want
		Needs  []string // the service does not start before a NeedMet event for each need
		// A service with Checked is ready only after a Checked event, and after a Ready event too if Policy.Announces is set.
		Checked bool
	}
	// NeedMet reports to all services with this need that it is met.
	NeedMet struct{ Need string }
	// Remove stops a service and forgets it once it is down.
	Remove struct{ Name string }
	// Evict kills services at once, without a grace, and forgets them, because this init has lost the right to run them.
	Evict struct {
		Names  []string
		Cause  Cause // cause in the exits of their runs; "" means CauseOperator
		Reason string
	}
	// Start sets the desired state to up and starts a service at once, without a restart delay. Earlier failures are forgotten.
	Start struct{ Name string }
	// Stop sets the desired state to down and ends a running process.
	Stop struct{ Name string }
	// Restart ends a running process and starts the service again at once. It starts a service that is not running.
	Restart struct{ Name string }
	// Once asks for a single run. A service that is not running starts now, and stays down after the run. For a running service
	// Once is the same as Unwant.
	Once struct{ Name string }
	// Unwant sets the desired state to down and drops a pending start. A running process goes on.
	Unwant struct{ Name string }
	// Scheduled reports when the schedule of a task starts it next. With Now the task also starts at once, unless it runs or is
	// about to start.
	Scheduled struct {
		Name string
		Next time.Time // zero if the task has no schedule any more
		Now  bool
	}
	// Pause stops the main process, or with Group its process group, by SIGSTOP. The service counts as paused until a Continue,
	// an order to end, or its end.
	Pause struct {
		Name  string
		Group bool
	}
	// Continue undoes Pause, by SIGCONT.
	Continue struct {
		Name  string
		Group bool
	}
	// SignalMain sends a signal to the main process, or with Group to its process group. If the signal ends the service, the
	// service restarts. Signal 0 stands for the stop signal.
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
		Code      int  // the exit code with which a shell reports this error: 126 or 127
	}
	// Exited reports the end of a main process or of a finish command.
	Exited struct {
		Name     string
		PID      int
		Code     int    // -1 after the end by a signal
		Signal   int    // 0 after an exit
		OOM      bool   // the kernel's out-of-memory killer killed it
		Leftover bool   // descendants of the process are alive
		Strays   string // PIDs of living processes that hide whether they belong to the run; "" for none
		CPU      time.Duration
		MaxRSS   int64
	}
	// StopCommandEnded reports that the stop command of a service has ended, or could not be started.
	StopCommandEnded struct {
		Name     string
		Run      uint64 // run of the stop command
		Fault    string // "" when it succeeded
		Leftover bool   // descendants of the command are alive
	}
	// Gone reports that all processes of the last run of a service, or of its stop command, have ended.
	Gone struct {
		Name string
		Run  uint64
	}
	// DescendantsEnded follows a SIGKILL to a tree. It reports how many descendants have ended since the main process did. A
	// growing number means that new processes replace the killed ones.
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
	// Ready reports whether a running service is ready. The service itself sends this report.
	Ready struct {
		Name  string
		Run   uint64
		Ready bool
		Text  string // why the service isn't ready, or a warning of a ready service
	}
	// Checked reports the result of the ready and start-up checks of a running service. The service is ready only if its Ready
	// reports say so too.
	Checked struct {
		Name  string
		Run   uint64
		Ready bool
		Text  string // as Text of Ready
	}
	// Unhealthy stops a running service, because one of its checks has failed for too long.
	Unhealthy struct {
		Name   string
		Run    uint64
		Answer string // last answer of the check
		Park   bool   // park the service; otherwise it is restarted
	}
	// Hold ends a running service with Policy.Sheddable, and prevents its start. A Hold without a reason releases the service,
	// and so does an operator's command. With Disk the profile uses too much disk space, and Policy.Sheddable does not matter.
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
		Extend          time.Duration // time that the service still needs to end, from now; 0 if the message has no such time
	}
	// InputsChanged reports that the input files of a parked service have changed.
	InputsChanged struct{ Name string }
	// Forward sends a signal that PID 1 got to the main process.
	Forward struct {
		Name   string
		Signal int
	}
	// Remark adds a line to the history. Service is "" for the container. Only a notice has Key and Data.
	Remark struct{ Service, Text, Key, Data string }
	// Shutdown ends the container within the machine's budget. A second Shutdown kills everything at once.
	Shutdown struct {
		Code   int // exit code of the container, unless the CMD has one
		Reason string
	}
	// Swept reports that this process has no child process left.
	Swept struct{}
	// Tick reports only the time, for deadlines.
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

// Action is an output of the machine. The loop executes actions in the given order. The set of actions is closed.
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
	// SpawnStop starts the stop command of a service as a run with its own number. After its end the loop sends StopCommandEnded.
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
	// SignalRest sends a signal to all other descendants of this process. At that time no service is alive.
	SignalRest struct{ Signal int }
	// Changed reports that the published view of a service is out of date.
	Changed struct{ Name string }
	// Note adds a record to the history. After a record with Dropped the loop forgets the service.
	Note struct{ Record Record }
	// Release reports, during a shutdown, that all processes of a service have ended. The loop may now close the pipe for their
	// output.
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
