package supervisor

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"hinit/client"
	"hinit/internal/backoff"
)

// State is a stage in the life of a service, spelled as the status command and the API print it.
type State string

// The states of a service. The API documentation explains them. The table in machine.go lists the transitions.
const (
	Down      State = client.StateDown
	Waiting   State = client.StateWaiting
	Starting  State = client.StateStarting
	Up        State = client.StateUp
	Stopping  State = client.StateStopping
	Killing   State = client.StateKilling
	Finishing State = client.StateFinishing
	Backoff   State = client.StateBackoff
	Parked    State = client.StateParked
	Failed    State = client.StateFailed
)

// Want is the desired state of a service. An operator sets it, or the boot from recorded intent.
type Want string

// The desired states, as the status and the event history show them.
const (
	WantUp   Want = client.WantUp
	WantDown Want = client.WantDown
)

// Cause says why a run ended, or why it did not start.
type Cause string

// The causes of an exit, as the status and the event history show them.
const (
	CauseCrash    Cause = "crash"    // an exit code other than 0 without a special meaning
	CauseClean    Cause = "clean"    // exit code 0, another success code, or a code that asks for a restart at once
	CauseConfig   Cause = "config"   // an exit code for faults that a restart can't mend
	CauseOOM      Cause = "oom"      // the kernel killed the process because memory was short
	CauseSignal   Cause = "signal"   // a signal ended the process, and hinit did not send it
	CauseOperator Cause = "operator" // an operator ended the service (stop, restart, kill), or its profile is gone
	CauseShutdown Cause = "shutdown" // hinit ended the service because the container is stopping
	CauseSpawn    Cause = "spawn"    // the process did not start
	CauseReplaced Cause = "replaced" // another instance of the agent has taken over the work of this service
	CauseHealth   Cause = "health"   // a health check failed for too long
	CauseShed     Cause = "shed"     // hinit ended the service because the container was short of memory
	CauseQuota    Cause = "quota"    // hinit ended the service because its profile used more disk space than its quota
	CauseLease    Cause = "lease"    // hinit killed the service because hinit lost the lock of the data volume
)

// Kind is the origin of a service. It also decides how the supervisor handles the exit of the process.
type Kind string

// The kinds of service.
const (
	KindGateway     Kind = client.KindGateway
	KindService     Kind = client.KindService // a service of hinit.yaml, or the dashboard
	KindCmd         Kind = client.KindCmd     // the container's CMD; its exit ends the container
	KindHook        Kind = "hook"             // a command that runs once during the boot
	KindPlaceholder Kind = "standin"          // placeholder process, hidden in status reports
	KindRun         Kind = "run"              // a command of a client; it runs once and is forgotten after its end
	KindCheck       Kind = "check"            // one execution of an exec check; it is forgotten after its end, and the history has no records of it
)

// oomAdj has the difference between the oom_score_adj of a service's processes and hinit's own, by kind. 50 points weigh as
// much as 5 % of the memory. When memory runs out, the kernel kills the process with the highest score. A gateway is restarted
// after that, but the death of the CMD or of PID 1 ends the container.
var oomAdj = map[Kind]int{KindCmd: 700, KindService: 750, KindGateway: 800, KindHook: expendableOOMAdj, KindRun: expendableOOMAdj, KindCheck: expendableOOMAdj}

// OOMAdj returns how much the oom_score_adj of processes of this kind exceeds hinit's own. [proc.Spec].OOMIncrease overrides it.
func (k Kind) OOMAdj() int { return oomAdj[k] }

// expendableOOMAdj applies to finish and stop commands, hooks, client commands and checks. Their loss costs least, so the
// kernel kills them first.
const expendableOOMAdj = 900

// SignalScope says which processes of a run receive a signal.
type SignalScope int

// The scopes. The zero value is the whole tree.
const (
	ScopeTree  SignalScope = iota // every process of the run, including descendants that left its group and session
	ScopeMain                     // only the main process
	ScopeGroup                    // all processes in the process group that the main process leads
)

// Policy says how a service restarts and stops. With the zero value it restarts at once and without a limit, and a stop sends
// SIGKILL without waiting.
type Policy struct {
	Backoff          backoff.Policy
	ResetAfter       time.Duration // a run of at least this length clears the count of earlier failures
	CrashLoopExits   int           `reexec:"LoopCount"`   // number of fast exits within CrashLoopWindow that are a crash loop
	CrashLoopWindow  time.Duration `reexec:"LoopWindow"`  // time window of CrashLoopExits
	ParkCodes        []int         `reexec:"ParkOn"`      // exit codes after which the service is parked
	ParkOnOutput     string        `reexec:"Refusal"`     // a failed run with a line of this prefix in its last output parks the service; "" for none
	NoDelayCodes     []int         `reexec:"ImmediateOn"` // exit codes after which the service restarts at once; such an exit is no failure
	SuccessCodes     []int         `reexec:"Successes"`   // exit codes other than 0 that mean success
	StopSignal       int           // signal that asks the service to end
	Grace            time.Duration // time from the stop signal to SIGKILL
	StopCommand      []string      // command that a stop runs before it sends the stop signal; empty for none
	ReportsReadiness bool          `reexec:"Announces"` // the service is ready only after a Ready event; otherwise it is ready as soon as it is up
	SingleRun        bool          `reexec:"Task"`      // the desired state becomes down after every run (hooks, client commands, exec checks)
	LeaveDescendants bool          `reexec:"Spare"`     // do not end descendants that outlive the main process
	Sheddable        bool          `reexec:"Sheds"`     // when memory is short, hinit may end the service or delay its start
	// IsCMD marks the container's CMD: it runs once, and the container ends with its exit code.
	IsCMD bool `reexec:"Once"`
	RestartAndNeeds

	// Fields that only service directories of s6 set.

	DrainsInput bool `reexec:"Drains"` // the service (a logger) reads the output of other services, so a shutdown ends it last
	DrainSignal int  `reexec:"Last"`   // signal to a service with DrainsInput when a shutdown has ended all others; 0 for none
	// SpawnRetry is the delay after a start that failed, and that will probably fail again soon (SpawnFailed.Temporary is
	// false). With 0, the failure counts as a fast exit. The CMD is different: it gets this delay after a temporary failure.
	// After any other failure, or with 0, the CMD is not started again.
	SpawnRetry   time.Duration
	ReadyRestart time.Duration // restart without a delay after a run that was ready at least this long; 0 for never
	KillNever    bool          // a stop never sends SIGKILL, and a second stop repeats the stop signal; only a shutdown kills
	KillScope    SignalScope   `reexec:"Kill"` // processes that get SIGKILL after Grace or FinishTimeout; a shutdown always kills the whole tree

	RunsFinish           bool          `reexec:"Finish"` // run Unit.FinishProgram after each run, before the service enters its next state
	FinishTimeout        time.Duration // time limit of the finish command, after which it is killed; 0 for none
	PermanentFinishCodes []int         `reexec:"PermanentFinish"` // exit codes of the finish command that mean: do not start the service again
}

// success reports whether an exit code means success.
func (p *Policy) success(code int) bool { return code == 0 || slices.Contains(p.SuccessCodes, code) }

// Exit describes how a run ended. It is never modified: a copy with Tail replaces it when hinit has read the last lines of
// output.
type Exit struct {
	Run uint64
	// PID of the main process, 0 if there was none
	PID    int
	Code   int // exit code; -1 after an end by a signal, or if there was no process
	Signal int // signal that ended the process, 0 if none
	Cause  Cause
	Error  string    // why the start failed (CauseSpawn), or the last answer of the check (CauseHealth)
	At     time.Time // when the run ended
	Uptime time.Duration
	CPU    time.Duration // processor time of the process, and of its children that it has reaped
	MaxRSS int64         // peak resident memory of the largest of these processes, in bytes
	Tail   []string      // last lines of output, oldest first; nil until hinit has read the output
}

// ToClient converts the exit to the type of the API. Tail stays empty, because not every reader may see the output of the
// service.
func (x *Exit) ToClient() client.Exit {
	out := client.Exit{Cause: string(x.Cause), EndedAt: x.At, Tail: []string{}, Error: x.Error, UptimeSeconds: max(x.Uptime, 0).Seconds(), PID: x.PID}
	switch {
	case x.Signal != 0:
		out.Signal = &x.Signal
	case x.Code >= 0:
		out.Code = &x.Code
	}
	return out
}

// Explanation describes how a run ended. It quotes the line of output that most likely explains the exit: the last warning or
// error, or else the last line. The quoted text is untrusted.
func (x *Exit) Explanation() string {
	why := ""
	for _, last := range slices.Backward(x.Tail) {
		line := strings.TrimSpace(last)
		if isWarning(line) {
			why = line
			break
		}
		why = cmp.Or(why, line)
	}
	if why == "" {
		return describeExit(x)
	}
	return describeExit(x) + ": " + why
}

// isWarning reports whether a log line contains a word such as WARN or ERROR.
func isWarning(line string) bool {
	return slices.ContainsFunc([]string{"WARN", "ERROR", "CRITICAL", "FATAL", "Error:", "error:", "fatal:", "panic:"}, func(word string) bool {
		return strings.Contains(line, word)
	})
}

// Texts for the reason of a transition or record. Other packages compare reasons with these texts.
const (
	ReasonShutdown = "the container is stopping"       // reason of every transition that a shutdown causes
	ReasonReplaced = "another instance has taken over" // the service is parked, because another instance does its work
	// SuffixProfileGone is the suffix of the reason of an exit that followed the renaming or removal of the service's profile.
	SuffixProfileGone = "because its profile was renamed or removed"
	ReasonCrashLoop   = "crash loop" // prefix of the record that explains why a service is in a crash loop

	reasonEndedAsRequested = "ended as asked"
)

// Record is one entry of the event history.
type Record struct {
	Seq     uint64 // number of the record; the first record is 1
	At      time.Time
	Service string // "" for a record about the container
	From    State  // states before and after a transition; both empty in other records
	To      State
	Reason  string
	PID     int
	Exit    *Exit // the exit that this record reports; if hinit later corrects the cause, a second record follows
	Dropped bool  // last record of a service that was removed

	By *client.Author // the client whose command caused this record; nil if hinit decided by itself

	Key, Data string // key of a notice that a client has posted; empty in all other records
}
