package supervisor

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"hinit/client"
	"hinit/internal/backoff"
)

// State is where a service is in its life. The values are what status and the API print.
type State string

// The states of a service, by the words of the API, which say what they mean. The table at the head of machine.go says how they follow
// each other.
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

// Want is what the operator (or the boot) asked for.
type Want string

// The two things that can be wanted of a service.
const (
	WantUp   Want = client.WantUp
	WantDown Want = client.WantDown
)

// Cause says why a process ended or could not start.
type Cause string

// The causes of an exit.
const (
	CauseCrash    Cause = "crash"    // an exit code without an order to stop
	CauseClean    Cause = "clean"    // exit 0, or a code that asks for a restart at once
	CauseConfig   Cause = "config"   // a code that says: starting me again changes nothing
	CauseOOM      Cause = "oom"      // the kernel killed it for memory
	CauseSignal   Cause = "signal"   // ended by a signal hinit did not send
	CauseOperator Cause = "operator" // an operator asked hinit to end it (stop, restart, kill), or its profile is gone
	CauseShutdown Cause = "shutdown" // hinit ended it because the container is stopping
	CauseSpawn    Cause = "spawn"    // it could not be started
	CauseReplaced Cause = "replaced" // another instance took over
	CauseHealth   Cause = "health"   // a health check failed for too long
	CauseShed     Cause = "shed"     // hinit ended it because the container was short of memory
	CauseLease    Cause = "lease"    // hinit killed it because it lost the lock of the data volume
)

// Kind says what a service is.
type Kind string

// The kinds of service.
const (
	KindGateway Kind = client.KindGateway
	KindService Kind = client.KindService // of hinit.yaml, the dashboard among them
	KindCmd     Kind = client.KindCmd     // the container's CMD: runs once, its exit ends the container
	KindHook    Kind = "hook"             // a command of the boot: runs once
	KindStandIn Kind = "standin"          // a process that only has to be there; it is in no report
	KindRun     Kind = "run"              // a one-shot run that a client asked for: it is forgotten when it has ended
	KindCheck   Kind = "check"            // one look of an exec check, likewise; nothing of it is in the history
)

// How much more the kernel's out-of-memory killer likes a process of a kind than hinit, as oom_score_adj; a step is a twentieth of
// the memory. The end of PID 1 ends everything, the end of the CMD ends the container; a gateway is started again.
var oomAdj = map[Kind]int{KindCmd: 700, KindService: 750, KindGateway: 800, KindHook: oomCheap, KindRun: oomCheap, KindCheck: oomCheap}

const oomCheap = 900

// Scope says which processes of a run a signal goes to.
type Scope int

// The scopes of a signal.
const (
	ScopeTree  Scope = iota // every process of the run, those that left its group and session too
	ScopeMain               // the main process alone
	ScopeGroup              // the process group that the main process leads
)

// Policy says how one service is restarted and stopped. The zero value restarts at once for ever and kills without grace.
type Policy struct {
	Backoff     backoff.Policy
	ResetAfter  time.Duration // a life at least this long forgets the failures before it
	LoopCount   int           // this many fast exits ...
	LoopWindow  time.Duration // ... within this time show as a crash loop
	ParkOn      []int         // exit codes after which it is parked
	Refusal     string        // it is parked when it has failed and one of its last lines begins so; "" is no such rule
	ImmediateOn []int         // exit codes after which it starts at once, not counted as a failure
	Successes   []int         // exit codes besides 0 that mean success
	StopSignal  int           // signal that asks it to end
	Grace       time.Duration // from the stop signal to SIGKILL
	StopCommand []string      // runs first when the service is asked to end; the stop signal follows its end. Empty for none
	Announces   bool          // it counts as ready only when a Ready event says so; otherwise it is ready while up
	Task        bool          // runs once and then stays down
	Spare       bool          // what it leaves behind goes on
	Sheds       bool          // it waits, or is ended, while the container is short of memory
	Once        bool          // runs once; its exit ends the container with its code
	Order

	// Further fields for s6 service directories.

	Drains       bool          // it reads what others write: at the end of the container it is asked to end after them
	Last         int           // signal that tells a service with Drains, at the end of the container, that nothing else of it is alive; 0 for none
	SpawnRetry   time.Duration // when to try again what can't be spawned for a reason that stays (with Once: one that may pass); with 0 that is a fast exit
	ReadyRestart time.Duration // a run that had been ready this long is started again at once; 0 is never
	KillNever    bool          // a stop never escalates to SIGKILL, and is repeated when asked again; only the end of the container kills
	Kill         Scope         // whom SIGKILL goes to when Grace or FinishTimeout is over; at the end of the container always the tree
	Finishes
}

// success reports whether an exit code means that the run has done its work.
func (p *Policy) success(code int) bool { return code == 0 || slices.Contains(p.Successes, code) }

// Finishes is the part of a [Policy] about the finish command of an s6 service directory.
type Finishes struct {
	Finish          bool          // Unit.Finish runs after each run, before anything else happens
	FinishTimeout   time.Duration // then the finish command is killed; 0 is never
	PermanentFinish []int         // exit codes of the finish command that mean: want it down
}

// Exit is how a run ended. It is immutable but for Tail, which a later copy carries once the log has been read.
type Exit struct {
	Run    uint64    // which run
	PID    int       // its main process, 0 if it was never spawned
	Code   int       // exit code; -1 when Signal is set or it was never spawned
	Signal int       // signal number that ended it, 0 if none
	Cause  Cause     //
	Error  string    // why it could not be started, for CauseSpawn; what its check said last, for CauseHealth
	At     time.Time //
	Uptime time.Duration
	CPU    time.Duration // that it and the children it waited for have used
	MaxRSS int64         // bytes, of the largest of them
	Tail   []string      // last lines it wrote, oldest first; nil until its output is read
}

// Wire returns the exit as the API has it, without its last lines.
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

// Words says how the run ended, with the line that is most likely to say why. That is the last line of level WARNING or worse,
// else the last. Its text may be anything.
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
	From    State  // states of a transition; both empty when it is a remark
	To      State
	Reason  string
	PID     int
	Exit    *Exit // set when the record is about the end of a run; once more when its cause turns out to be another
	Dropped bool  // the service is forgotten; nothing about it follows

	By *client.By // who gave the order that it carries out; nil where this init decided by itself

	Key, Data string // of a notice that somebody posted; Key is empty when it is none
}
