package supervisor

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"hinit/client"
	"hinit/internal/backoff"
)

// State is a stage in the life of a service. Status and the API print these values.
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

// Want is the desired state of a service, set by an operator or by the boot.
type Want string

// The two desired states.
const (
	WantUp   Want = client.WantUp
	WantDown Want = client.WantDown
)

// Cause says why a run ended or could not start.
type Cause string

// The causes of an exit.
const (
	CauseCrash    Cause = "crash"    // an exit code other than 0 that has no special meaning
	CauseClean    Cause = "clean"    // exit 0, or a code that asks for a restart at once
	CauseConfig   Cause = "config"   // an exit code that means: a restart does not help
	CauseOOM      Cause = "oom"      // the kernel killed it because memory was short
	CauseSignal   Cause = "signal"   // ended by a signal that hinit did not send
	CauseOperator Cause = "operator" // an operator asked hinit to end it (stop, restart, kill), or its profile is gone
	CauseShutdown Cause = "shutdown" // hinit ended it because the container is stopping
	CauseSpawn    Cause = "spawn"    // it could not be started
	CauseReplaced Cause = "replaced" // another instance took over
	CauseHealth   Cause = "health"   // a health check failed for too long
	CauseShed     Cause = "shed"     // hinit ended it because the container was short of memory
	CauseQuota    Cause = "quota"    // hinit ended it because its profile had more on the disk than its quota
	CauseLease    Cause = "lease"    // hinit killed it because it lost the lock of the data volume
)

// Kind says where a service comes from, and what the supervisor does when its process ends.
type Kind string

// The kinds of service.
const (
	KindGateway Kind = client.KindGateway
	KindService Kind = client.KindService // from hinit.yaml, or the dashboard
	KindCmd     Kind = client.KindCmd     // the container's CMD: runs once, and its exit ends the container
	KindHook    Kind = "hook"             // a command of the boot: runs once
	KindStandIn Kind = "standin"          // a placeholder process; reports leave it out
	KindRun     Kind = "run"              // a command that a client asked for: it runs once and is forgotten after its end
	KindCheck   Kind = "check"            // one call of an exec check: it is forgotten after its end, and is not in the history
)

// oomAdj is added to the oom_score_adj of hinit for a process of each kind. 50 points weigh as much as a twentieth of the memory.
// The kernel should kill cheap things first: the end of PID 1 or of the CMD ends the container, but a gateway is only restarted.
var oomAdj = map[Kind]int{KindCmd: 700, KindService: 750, KindGateway: 800, KindHook: oomCheap, KindRun: oomCheap, KindCheck: oomCheap}

const oomCheap = 900

// Scope selects the processes of a run that receive a signal.
type Scope int

// The scopes of a signal.
const (
	ScopeTree  Scope = iota // every process of the run, including descendants that left its group and session
	ScopeMain               // the main process alone
	ScopeGroup              // the process group that the main process leads
)

// Policy says how one service is restarted and stopped. The zero value restarts at once for ever and kills without grace.
type Policy struct {
	Backoff          backoff.Policy
	ResetAfter       time.Duration // a run at least this long clears the count of earlier failures
	LoopCount        int           // this many fast exits ...
	LoopWindow       time.Duration // ... within this time show as a crash loop
	ParkOn           []int         // exit codes that park the service
	Refusal          string        // park it when a run failed and one of its last lines begins with this text; "" for no such rule
	ImmediateOn      []int         // exit codes that restart it at once, without counting a failure
	Successes        []int         // exit codes besides 0 that mean success
	StopSignal       int           // signal that asks it to end
	Grace            time.Duration // from the stop signal to SIGKILL
	StopCommand      []string      // executed first when the service is asked to end; the stop signal follows after it. Empty for none
	Announces        bool          // it is ready only when a Ready event says so; otherwise it is ready while it is up
	Task             bool          // runs once and then stays down
	LeaveDescendants bool          `reexec:"Spare"` // descendants that outlive its main process are left alone
	Sheddable        bool          `reexec:"Sheds"` // when memory is short it may be ended, or has to wait before it starts
	Once             bool          // runs once; its exit ends the container with its code
	Order

	// Fields for s6 service directories.

	Drains       bool          // it reads what other services write: a shutdown ends it after them
	LastSignal   int           `reexec:"Last"` // at shutdown, tells a service with Drains that no other process is alive; 0 for none
	SpawnRetry   time.Duration // delay after a start failed for a lasting reason (with Once: a passing one); 0 counts it as a fast exit
	ReadyRestart time.Duration // a run that was ready for this long is restarted at once; 0 for never
	KillNever    bool          // a stop never escalates to SIGKILL; a second stop repeats the signal. Only a shutdown kills
	KillScope    Scope         `reexec:"Kill"` // target of SIGKILL after Grace or FinishTimeout; at shutdown always the tree
	Finishes
}

// success reports whether an exit code counts as success.
func (p *Policy) success(code int) bool { return code == 0 || slices.Contains(p.Successes, code) }

// Finishes holds the fields of [Policy] for the finish command of an s6 service directory.
type Finishes struct {
	Finish          bool          // run Unit.Finish after each run, before the next transition
	FinishTimeout   time.Duration // time limit of the finish command, which is then killed; 0 for none
	PermanentFinish []int         // exit codes of the finish command that set the desired state to down
}

// Exit describes how a run ended. It never changes, except that a later copy has Tail, after the log has been read.
type Exit struct {
	Run    uint64    // which run
	PID    int       // its main process, 0 if it was never spawned
	Code   int       // exit code; -1 when Signal is set or it was never spawned
	Signal int       // signal number that ended it, 0 if none
	Cause  Cause     //
	Error  string    // why the start failed (CauseSpawn), or the last answer of the check (CauseHealth)
	At     time.Time //
	Uptime time.Duration
	CPU    time.Duration // processor time of the process and the children it waited for
	MaxRSS int64         // peak memory in bytes of the largest of these processes
	Tail   []string      // last lines it wrote, oldest first; nil until its output is read
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

// Words describes the end of a run, and quotes the line of output that most likely explains it. That is the last line of level
// WARNING or worse, else the last line. The service controls the text of that line.
func (x *Exit) Words() string {
	why := ""
	for _, last := range slices.Backward(x.Tail) {
		line := strings.TrimSpace(last)
		if warns(line) {
			why = line
			break
		}
		why = cmp.Or(why, line)
	}
	if why == "" {
		return describe(x)
	}
	return describe(x) + ": " + why
}

// warns reports whether a line of a log looks like a warning or worse.
func warns(line string) bool {
	return slices.ContainsFunc([]string{"WARN", "ERROR", "CRITICAL", "FATAL", "Error:", "error:", "fatal:", "panic:"}, func(word string) bool {
		return strings.Contains(line, word)
	})
}

// Record is one entry of the event history.
type Record struct {
	Seq     uint64 // counts up from 1
	At      time.Time
	Service string // "" when it is about the container
	From    State  // the states of a transition; both are empty in a remark
	To      State
	Reason  string
	PID     int
	Exit    *Exit // the end of a run that this record reports; a second record follows when a better cause becomes known
	Dropped bool  // the service was forgotten; no later record is about it

	By *client.By // By is the client whose order the record carries out; nil when hinit decided by itself.

	Key, Data string // set in a notice that a client posted; Key is empty in all other records
}
