package supervisor

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"hinit/client"
	"hinit/internal/backoff"
)

// State is a stage in the life of a service. The status command and the API print these values.
type State string

// The states of a service. The API documents them; the table in machine.go lists the transitions.
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

// Want is the desired state of a service, as an operator or the boot has set it.
type Want string

// The two desired states.
const (
	WantUp   Want = client.WantUp
	WantDown Want = client.WantDown
)

// Cause says why a run ended or did not start.
type Cause string

// The causes of an exit.
const (
	CauseCrash    Cause = "crash"    // an exit code other than 0 without a special meaning
	CauseClean    Cause = "clean"    // exit code 0, another success code, or a code that requests a restart at once
	CauseConfig   Cause = "config"   // an exit code by which the service says that a restart won't help
	CauseOOM      Cause = "oom"      // the kernel killed the process because memory was short
	CauseSignal   Cause = "signal"   // a signal ended the process, and hinit did not send it
	CauseOperator Cause = "operator" // an operator asked hinit to end the service (stop, restart, kill), or its profile is gone
	CauseShutdown Cause = "shutdown" // hinit ended the service because the container is stopping
	CauseSpawn    Cause = "spawn"    // the process did not start
	CauseReplaced Cause = "replaced" // another instance of the service has taken over
	CauseHealth   Cause = "health"   // a health check failed for too long
	CauseShed     Cause = "shed"     // hinit ended the service because the container was short of memory
	CauseQuota    Cause = "quota"    // hinit ended the service because its profile used more disk space than its quota
	CauseLease    Cause = "lease"    // hinit killed the service because hinit lost the lock of the data volume
)

// Kind is the origin of a service. It also decides how the supervisor handles the exit of the process.
type Kind string

// The kinds of service.
const (
	KindGateway Kind = client.KindGateway
	KindService Kind = client.KindService // from hinit.yaml, or the dashboard
	KindCmd     Kind = client.KindCmd     // the container's CMD: runs once, and its exit ends the container
	KindHook    Kind = "hook"             // a command that runs once during the boot
	KindStandIn Kind = "standin"          // a placeholder process that status reports leave out
	KindRun     Kind = "run"              // a command that a client runs; it runs once and is forgotten after its end
	KindCheck   Kind = "check"            // one execution of an exec check; it is forgotten after its end, and leaves no records in the history
)

// oomAdj is, for each kind, the difference between the oom_score_adj of its processes and the value of hinit. 50 points
// weigh as much as 5 % of the memory. The values make the kernel first kill processes that are cheap to lose: a gateway
// restarts, but without PID 1 or the CMD the container ends.
var oomAdj = map[Kind]int{KindCmd: 700, KindService: 750, KindGateway: 800, KindHook: oomAdjCheap, KindRun: oomAdjCheap, KindCheck: oomAdjCheap}

// OOMAdj returns by how much the oom_score_adj of processes of this kind exceeds the value of hinit, unless [proc.Spec].OOM says
// otherwise.
func (k Kind) OOMAdj() int { return oomAdj[k] }

// oomAdjCheap is for processes that are cheap to lose: finish and stop commands, hooks, commands of clients, and checks.
const oomAdjCheap = 900

// SignalScope selects the processes of a run that receive a signal.
type SignalScope int

// The scopes of a signal.
const (
	ScopeTree  SignalScope = iota // every process of the run, including descendants that left its group and session
	ScopeMain                     // only the main process
	ScopeGroup                    // all processes in the process group that the main process leads
)

// Policy says how a service restarts and stops. The zero value restarts at once and without a limit, and kills without a grace
// period.
type Policy struct {
	Backoff          backoff.Policy
	ResetAfter       time.Duration // a run of at least this length clears the count of earlier failures
	LoopCount        int           // this many fast exits within LoopWindow are a crash loop
	LoopWindow       time.Duration // time window of LoopCount
	ParkOn           []int         // exit codes after which the service is parked
	ParkOnOutput     string        `reexec:"Refusal"` // a failed run whose last output has a line with this beginning parks the service; "" for none
	ImmediateOn      []int         // exit codes after which the service restarts at once, without counting a failure
	Successes        []int         // exit codes other than 0 that mean success
	StopSignal       int           // signal that asks the service to end
	Grace            time.Duration // time from the stop signal to SIGKILL
	StopCommand      []string      // command to run first when the service must end; the stop signal follows after its end; empty for none
	ReportsReadiness bool          `reexec:"Announces"` // the service is ready only after a Ready event; otherwise it is ready as soon as it is up
	SingleRun        bool          `reexec:"Task"`      // every run is a single run, then the desired state is down (hooks, client commands, exec checks)
	LeaveDescendants bool          `reexec:"Spare"`     // descendants that outlive the main process stay alive
	Sheddable        bool          `reexec:"Sheds"`     // when memory is short, the service may be ended, or must wait before it starts
	IsCMD            bool          `reexec:"Once"`      // the service is the CMD: it runs once, and its exit ends the container with its code
	RestartAndNeeds

	// Fields for s6 service directories.

	DrainsInput  bool          `reexec:"Drains"` // the service reads the output of other services, so a shutdown ends it after all of them
	DrainSignal  int           `reexec:"Last"`   // at shutdown: signal that tells a service with DrainsInput that all others have ended; 0 for none
	SpawnRetry   time.Duration // delay after a failed start, unless SpawnFailed.Temporary is set (with IsCMD: only if it is set); 0 counts it as a fast exit, or ends the CMD
	ReadyRestart time.Duration // a run that was ready for at least this long is followed by a restart without a delay; 0 disables this
	KillNever    bool          // a stop never leads to SIGKILL, and a second stop repeats the signal; only a shutdown kills
	KillScope    SignalScope   `reexec:"Kill"` // which processes get SIGKILL after Grace or FinishTimeout; at shutdown always the whole tree

	Finish          bool          // run Unit.Finish after each run, before the service enters its next state
	FinishTimeout   time.Duration // time limit of the finish command, after which it is killed; 0 for none
	PermanentFinish []int         // exit codes of the finish command that mean: do not start the service again
}

// success reports whether an exit code counts as success.
func (p *Policy) success(code int) bool { return code == 0 || slices.Contains(p.Successes, code) }

// Exit describes how a run ended. It is never modified. After hinit has read the log, a copy with Tail replaces the Exit.
type Exit struct {
	Run    uint64    // number of the run
	PID    int       // PID of the main process, 0 if there was none
	Code   int       // exit code; -1 after an end by a signal, or if there was no process
	Signal int       // signal that ended the process, 0 if none
	Cause  Cause     // why the run ended
	Error  string    // why the start failed (CauseSpawn), or the last answer of the check (CauseHealth)
	At     time.Time // when the run ended
	Uptime time.Duration
	CPU    time.Duration // processor time of the process and of the children for which it waited
	MaxRSS int64         // peak memory in bytes of the largest of these processes
	Tail   []string      // last lines of output, oldest first; nil until hinit has read the output
}

// Wire converts the exit to its form in the API, without Tail.
func (x *Exit) Wire() client.Exit {
	out := client.Exit{Cause: string(x.Cause), At: x.At, Tail: []string{}, Error: x.Error, UptimeSeconds: max(x.Uptime, 0).Seconds(), PID: x.PID}
	switch {
	case x.Signal != 0:
		out.Signal = &x.Signal
	case x.Code >= 0:
		out.Code = &x.Code
	}
	return out
}

// Explanation describes the end of a run, and quotes the line of its output that most likely explains it. This is the last line
// that looks like a warning or worse, or without such a line the last line of the output. The service controls the text of the
// line.
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

// isWarning reports whether a line of a log looks like a warning or worse.
func isWarning(line string) bool {
	return slices.ContainsFunc([]string{"WARN", "ERROR", "CRITICAL", "FATAL", "Error:", "error:", "fatal:", "panic:"}, func(word string) bool {
		return strings.Contains(line, word)
	})
}

// Record is one entry of the event history.
type Record struct {
	Seq     uint64 // number of the record, which counts up from 1
	At      time.Time
	Service string // "" for a record about the container
	From    State  // the states of a transition; both are empty in other records
	To      State
	Reason  string
	PID     int
	Exit    *Exit // the exit that this record reports; if a better cause becomes known, a second record follows
	Dropped bool  // the loop has forgotten the service; no later record is about it

	By *client.By // the client whose order the record carries out; nil if hinit decided by itself

	Key, Data string // only in a notice that a client posted; Key is empty in all other records
}
