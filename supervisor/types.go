package supervisor

import (
	"slices"
	"strings"
	"time"

	"hinit/internal/backoff"
)

// State is where a service is in its life. The values are what status and the API print.
type State string

// The states of a service. The table at the head of machine.go says how they follow each other.
const (
	Down      State = "down"      // not running, nothing pending
	Waiting   State = "waiting"   // wanted up, a need is not met yet
	Starting  State = "starting"  // being spawned
	Up        State = "up"        // its main process runs
	Stopping  State = "stopping"  // told to end, or its main process is gone and what it left behind is told to end
	Killing   State = "killing"   // sent SIGKILL, not gone yet
	Finishing State = "finishing" // its main process is gone, and the finish command that it has for that runs
	Backoff   State = "backoff"   // wanted up, waits before the next start
	Parked    State = "parked"    // wanted up, but starting again is pointless until its inputs change or an operator asks
	Failed    State = "failed"    // cannot be started as defined; an operator or a reload has to act
)

// States lists every state, in the order of a life.
func States() []State {
	return []State{Down, Waiting, Starting, Up, Stopping, Killing, Finishing, Backoff, Parked, Failed}
}

// Want is what the operator (or the boot) asked for.
type Want string

// The two things that can be wanted of a service.
const (
	WantUp   Want = "up"
	WantDown Want = "down"
)

// Cause says why a process ended or could not start.
type Cause string

// The causes of an exit.
const (
	CauseCrash    Cause = "crash"    // an exit code that nobody asked for
	CauseClean    Cause = "clean"    // exit 0, or a code that asks for a restart at once
	CauseConfig   Cause = "config"   // a code that says: starting me again changes nothing
	CauseOOM      Cause = "oom"      // the kernel killed it for memory
	CauseSignal   Cause = "signal"   // ended by a signal hinit did not send
	CauseOperator Cause = "operator" // an operator asked hinit to end it (stop, restart, kill), or its profile is gone
	CauseShutdown Cause = "shutdown" // hinit ended it because the container is stopping
	CauseSpawn    Cause = "spawn"    // it could not be started
	CauseReplaced Cause = "replaced" // another instance took over
	CauseHealth   Cause = "health"   // a health check failed for too long
)

// Kind says what a service is.
type Kind string

// The kinds of service.
const (
	KindGateway Kind = "gateway" // the gateway of a profile
	KindService Kind = "service" // a service of hinit.yaml, the dashboard among them
	KindCmd     Kind = "cmd"     // the container's CMD: runs once, its exit ends the container
	KindHook    Kind = "hook"    // a command of the boot: runs once
	KindStandIn Kind = "standin" // a process that only has to be there; nobody is told of it
)

// How much more the kernel's out-of-memory killer likes a process of a kind than hinit, as oom_score_adj: 1000 is all the memory that the
// container may have. PID 1 ends everything, the CMD the container, a service perhaps what gateways need; a gateway is
// started again, and most of the memory is theirs; a hook or a finish command is cheapest. Even the CMD is preferred to a PID 1 that
// has two thirds of the memory. Between them sizes count: a step is a twentieth of the memory.
var oomAdj = map[Kind]int{KindCmd: 700, KindService: 750, KindGateway: 800, KindHook: oomCheap}

const oomCheap = 900

// Scope says which processes of a run a signal goes to.
type Scope int

// The scopes of a signal.
const (
	ScopeTree  Scope = iota // every process of the run, those that left its group and session too
	ScopeMain               // the main process alone
	ScopeGroup              // the process group that the main process leads
)

// Policy says how one service is restarted and stopped. The zero value restarts at once for ever and kills without
// grace, so callers fill it from the configuration.
type Policy struct {
	Backoff     backoff.Policy
	ResetAfter  time.Duration // a life at least this long forgets the failures before it
	LoopCount   int           // this many fast exits ...
	LoopWindow  time.Duration // ... within this time show as a crash loop
	ParkOn      []int         // exit codes after which it is parked
	ImmediateOn []int         // exit codes after which it starts at once, not counted as a failure
	StopSignal  int           // signal that asks it to end
	Grace       time.Duration // from the stop signal to SIGKILL
	Announces   bool          // it counts as ready only when a Ready event says so; otherwise it is ready while up
	Task        bool          // runs once and then stays down
	Spare       bool          // what it leaves behind goes on
	Once        bool          // runs once; its exit ends the container with its code

	// What s6 service directories need besides.

	Drains          bool          // it reads what others write: at the end of the container it is not asked to end before they have ended and their end of the pipe is closed
	SpawnRetry      time.Duration // a run that can't be spawned for a reason that stays (with Once: one that may pass) is tried again after this; else, and with 0, it is a fast exit
	ReadyRestart    time.Duration // a run that had been ready this long is started again at once; 0 is never
	KillNever       bool          // a stop never escalates to SIGKILL, and is repeated when asked again; only the end of the container kills
	Kill            Scope         // whom SIGKILL goes to when Grace or FinishTimeout is over; at the end of the container always the tree
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
	Error  string    // why it could not be started, for CauseSpawn
	At     time.Time //
	Uptime time.Duration
	Tail   []string // last lines it wrote, oldest first
}

// Words says how the run ended and, where it wrote one, the line that is most likely to say why: its last. The line is whatever
// the service wrote.
func (x *Exit) Words() string {
	for _, last := range slices.Backward(x.Tail) {
		if line := strings.TrimSpace(last); line != "" {
			return describe(x) + ": " + line
		}
	}
	return describe(x)
}

// Record is one entry of the event history.
type Record struct {
	Seq     uint64 // counts up from 1 without gaps
	At      time.Time
	Service string // "" when it is about the container
	From    State  // states of a transition; both empty when it is a remark
	To      State
	Reason  string
	PID     int
	Exit    *Exit // set when the record is about the end of a run; once more when its cause turns out to be another
	Dropped bool  // the service is forgotten; nothing about it follows
}
