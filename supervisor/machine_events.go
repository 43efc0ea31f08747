package supervisor

import "time"

// Event is an input of the machine: a request, an exit, a report or a tick. Only this package defines events.
type Event interface {
	// target returns the name of the service that receives the event, or "" for an event about the container. Step ignores
	// unknown services.
	target() string
}

// Events of the loop. The loop creates some of them itself. Other packages send events with [Loop.Do] and [Loop.Post].
type (
	// Add registers a service, or replaces the policy of a registered one. If Want is up, the service starts as soon as its
	// needs are met.
	Add struct {
		Name   string
		Policy *Policy
		Want   Want
		Needs  []string // names of conditions; the service does not start before a NeedMet event has reported each of them
		// HasReadinessChecks is true if the service has readiness checks. The service is then ready only after a ChecksReported
		// event. If Policy.ReportsReadiness is also set, the service must also have sent a Ready event.
		HasReadinessChecks bool
	}
	// NeedMet reports that a condition, such as the end of the boot, is met. It concerns all services that list the condition in
	// Add.Needs.
	NeedMet struct{ Need string }
	// Remove stops a service and forgets it once it is down.
	Remove struct{ Name string }
	// Evict kills services immediately, without a grace period, and forgets them. hinit uses it for processes that must not
	// run any longer, for example after it lost the lock of the data volume.
	Evict struct {
		Names  []string
		Cause  Cause // cause of the exits of these services; "" for CauseOperator
		Reason string
	}
	// Start sets the desired state to up, forgets earlier failures, and starts the service at once, without a restart delay.
	Start struct{ Name string }
	// Stop sets the desired state to down and ends the running process.
	Stop struct{ Name string }
	// Restart ends the running process and then starts the service again at once. A service that is not running is only started.
	Restart struct{ Name string }
	// RunOnce asks for a single run. A service that is not running starts now, and stays down after the run. A running service
	// continues until its current run ends, and then stays down.
	RunOnce struct{ Name string }
	// StayDown sets the desired state to down and drops a pending start, but lets a running process continue.
	StayDown struct{ Name string }
	// Scheduled carries the next start time from the schedule of a task. With Now the task also starts immediately, unless it is
	// already running or about to start.
	Scheduled struct {
		Name string
		Next time.Time // next start by the schedule; zero without a schedule
		Now  bool
	}
	// Pause sends SIGSTOP to the main process, or with Group to its process group. The status shows "paused" until the run ends,
	// or until hinit continues or stops the service.
	Pause struct {
		Name  string
		Group bool
	}
	// Continue sends SIGCONT, which ends a Pause.
	Continue struct {
		Name  string
		Group bool
	}
	// SignalMain sends a signal to the main process, or with Group to its process group. If the process ends, the restart policy
	// decides what follows, as after any exit. Signal 0 stands for Policy.StopSignal.
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
		Permanent bool // another attempt can't succeed unless something changes
		Temporary bool // the kernel lacked a resource, but may have it again soon
		Code      int  // the exit code with which a shell reports this error: 126 or 127
	}
	// Exited reports that a main process or a finish command has been reaped.
	Exited struct {
		Name         string
		PID          int
		Code         int    // exit code; -1 if a signal ended the process
		Signal       int    // signal that ended the process; 0 if the process exited by itself
		OOM          bool   // the kernel's out-of-memory killer killed the process
		Leftover     bool   // descendants of the process are alive
		MaybeMembers string // PIDs of living orphans that may belong to this run or to another; "" for none
		CPU          time.Duration
		MaxRSS       int64
	}
	// StopCommandEnded reports that the stop command of a service has been reaped, or could not be started.
	StopCommandEnded struct {
		Name     string
		Run      uint64 // run number of the stop command
		Fault    string // how the command failed; "" if it succeeded
		Leftover bool   // descendants of the command are alive
	}
	// RunEnded reports that all processes of a run have ended. Run is the last run of the service, or its stop command.
	RunEnded struct {
		Name string
		Run  uint64
	}
	// DescendantsEnded follows a SIGKILL to the process tree of a run. Count is how many descendants have ended since the main
	// process ended. A Count that grows with every SIGKILL means that the descendants fork faster than hinit kills them.
	DescendantsEnded struct {
		Name  string
		Run   uint64
		Count int
	}
	// CorrectCause replaces the recorded cause of an exit, because hinit may learn the real cause only after the exit. The new
	// cause is CauseReplaced, or CauseOperator if the profile was renamed or removed.
	CorrectCause struct {
		Name  string
		Run   uint64
		Cause Cause
	}
	// LastLines delivers the last lines of output of a run, for Exit.Tail.
	LastLines struct {
		Name  string
		Run   uint64
		Lines []string
	}
	// Ready carries what a running service says about its own readiness, for example through a state file, a pipe or sd_notify.
	Ready struct {
		Name  string
		Run   uint64
		Ready bool
		Text  string // why the service isn't ready, or a warning of a ready service
	}
	// StatusText replaces the warning of a running service. Its readiness stays the same.
	StatusText struct {
		Name string
		Run  uint64
		Text string
	}
	// ChecksReported carries the combined result of the ready and start-up checks of a running service. The service is ready only
	// if both this event and the service's own Ready event report readiness.
	ChecksReported struct {
		Name  string
		Run   uint64
		Ready bool
		Text  string // why the checks fail, or a warning
	}
	// Unhealthy stops a running service whose liveness check has failed for too long.
	Unhealthy struct {
		Name   string
		Run    uint64
		Answer string // last answer of the failed check
		Park   bool   // park the service after the stop; otherwise it is restarted
	}
	// Hold ends a running service, and prevents its start until the hold is released. A Hold with an empty Reason releases
	// the hold. A command of an operator also releases it. Without Disk, the reason is a shortage of memory, and only services
	// with Policy.Sheddable can be held. With Disk, the reason is a profile that uses too much disk space, and every service
	// can be held.
	Hold struct {
		Name, Reason string
		Disk         bool
	}
	// HoldStarts makes all services with Policy.Sheddable wait before they start. An empty Reason releases them.
	HoldStarts struct{ Reason string }
	// NotifyMessage is an sd_notify message from a process of a running service, see [Loop.HandleNotify].
	NotifyMessage struct {
		Name            string
		Run             uint64
		Ready, Stopping bool
		Status          string // text for people, valid if HasStatus is set; "" clears the status
		HasStatus       bool
		Extend          time.Duration // how much more time the service needs to end, from now; 0 if the message does not say
	}
	// InputsChanged reports that the input files of a parked service have changed.
	InputsChanged struct{ Name string }
	// ForwardSignal passes a signal that PID 1 has received on to the main process.
	ForwardSignal struct {
		Name   string
		Signal int
	}
	// Remark adds a record to the history. Service is "" for a record about the container. Key and Data are set only for a
	// notice that a client has posted.
	Remark struct{ Service, Text, Key, Data string }
	// Shutdown stops all services and ends the container within Machine.ShutdownBudget. A second Shutdown kills everything
	// immediately.
	Shutdown struct {
		Code   int // exit code of the container, used if the CMD did not end by itself with an exit code
		Reason string
	}
	// NoChildrenLeft reports during a shutdown that PID 1 has no child process left, so the container can end.
	NoChildrenLeft struct{}
	// Tick makes the machine act on deadlines that have passed. The loop sends it when Machine.Deadline is reached.
	Tick struct{}
)

func (e Remove) target() string           { return e.Name }
func (e Start) target() string            { return e.Name }
func (e Stop) target() string             { return e.Name }
func (e Restart) target() string          { return e.Name }
func (e RunOnce) target() string          { return e.Name }
func (e StayDown) target() string         { return e.Name }
func (e Scheduled) target() string        { return e.Name }
func (e Pause) target() string            { return e.Name }
func (e Continue) target() string         { return e.Name }
func (e SignalMain) target() string       { return e.Name }
func (e Spawned) target() string          { return e.Name }
func (e SpawnFailed) target() string      { return e.Name }
func (e Exited) target() string           { return e.Name }
func (e StopCommandEnded) target() string { return e.Name }
func (e RunEnded) target() string         { return e.Name }
func (e DescendantsEnded) target() string { return e.Name }
func (e CorrectCause) target() string     { return e.Name }
func (e LastLines) target() string        { return e.Name }
func (e Ready) target() string            { return e.Name }
func (e StatusText) target() string       { return e.Name }
func (e ChecksReported) target() string   { return e.Name }
func (e Unhealthy) target() string        { return e.Name }
func (e NotifyMessage) target() string    { return e.Name }
func (e InputsChanged) target() string    { return e.Name }
func (e ForwardSignal) target() string    { return e.Name }

func (Add) target() string            { return "" }
func (NeedMet) target() string        { return "" }
func (e Hold) target() string         { return e.Name }
func (Evict) target() string          { return "" }
func (HoldStarts) target() string     { return "" }
func (Remark) target() string         { return "" }
func (Shutdown) target() string       { return "" }
func (NoChildrenLeft) target() string { return "" }
func (Tick) target() string           { return "" }

// Action is an output of the machine. The loop executes actions in the order in which Step returns them. Only this package
// defines actions.
type Action interface{ isAction() }

// The actions, which [Loop] carries out in the order in which Step returns them.
type (
	// Spawn starts the main process. The loop answers with Spawned or SpawnFailed, before any other event.
	Spawn struct {
		Name string
		Run  uint64
	}
	// SpawnFinish starts the finish command of a service as a run with its own number. The loop answers with Spawned or
	// SpawnFailed.
	SpawnFinish struct {
		Name string
		Run  uint64
		Exit Exit // the exit of the run before the finish command
	}
	// SpawnStop starts the stop command of a service as a run with its own number. After the end of the stop command, the loop
	// sends StopCommandEnded.
	SpawnStop struct {
		Name string
		Run  uint64
	}
	// Signal sends a signal to processes of a run.
	Signal struct {
		Name   string
		Run    uint64
		Signal int
		Scope  SignalScope
		Wake   bool // whether to send SIGCONT, too, because a stopped process reacts only to SIGKILL
	}
	// SignalDescendants sends a signal to all descendants of hinit. The machine uses this action when no service is alive.
	SignalDescendants struct{ Signal int }
	// ServiceChanged reports that the entry of a service in the snapshot is out of date.
	ServiceChanged struct{ Name string }
	// AppendRecord adds a record to the history. If Record.Dropped is set, the loop then forgets the service.
	AppendRecord struct{ Record Record }
	// CloseOutput reports during a shutdown that all processes of a service have ended. The loop then closes
	// Unit.StdOverrides[1], so that a logger that reads this pipe sees the end of its input.
	CloseOutput struct{ Name string }
	// EndLoop ends the loop: Loop.Run returns Code.
	EndLoop struct{ Code int }
)

func (Spawn) isAction()             {}
func (SpawnFinish) isAction()       {}
func (SpawnStop) isAction()         {}
func (Signal) isAction()            {}
func (SignalDescendants) isAction() {}
func (ServiceChanged) isAction()    {}
func (AppendRecord) isAction()      {}
func (CloseOutput) isAction()       {}
func (EndLoop) isAction()           {}
