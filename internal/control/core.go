package control

import (
	"context"
	"errors"
	"time"

	"hinit/client"
	"hinit/supervisor"
)

// Core is PID 1 as the server needs it. All methods may be called from any goroutine. Those without a context must not block; those
// with one must return when it ends. The compiler sees that none is missing: what a Core lacks is missing in the API without a word.
type Core interface {
	// See [supervisor.Loop].
	Snapshot() *supervisor.Snapshot
	News() <-chan struct{}
	History() *supervisor.Ring
	Orphans() uint64
	// Command records the intent for a service durably, and acts. service is a name from a snapshot. After nil the snapshot shows
	// the effect. When ctx ends first, the error says how far it has come, and the command stays in force. Errors of
	// [supervisor.Loop.Do] get their kind; the text of others is given to the client.
	Command(ctx context.Context, verb client.Verb, service string) error
	// Rescan brings the services in step with the profiles on disk. The snapshot shows the result when it returns.
	Rescan(ctx context.Context) error
	// Find is Rescan for one service that no snapshot has, by its name or its profile's.
	Find(ctx context.Context, name string) error
	// Reload reads the configuration again, applies it, and returns the changes.
	Reload(ctx context.Context, how client.Reload) (client.ReloadReply, error)
	// Examine examines the data volume. When ctx ends, it returns what it has found so far and says so.
	Examine(ctx context.Context) client.Findings
	// Config returns the effective configuration.
	Config() []client.ConfigEntry
	// Init describes hinit. The server fills in Stopping, Orphans, UptimeSeconds and Cmd.
	Init() client.Init
	// Ping returns nil once the supervisor's loop has handled an empty event.
	Ping(ctx context.Context) error

	// AwaitBoot returns nil when the boot, which registers services, is over. It refuses to wait for pid, the caller, when that process
	// is part of the boot.
	AwaitBoot(ctx context.Context, pid int) error
	// Booting reports whether the boot is under way, and the hook that runs; nil for none.
	Booting() (bool, *client.BootHook)
	// Expected returns services that the boot is known to register and no snapshot has yet. With all it waits until all are known
	// or ctx ends. It returns nil once the boot is over.
	Expected(ctx context.Context, all bool) []*supervisor.Service

	// Settle is how long a service without readiness has to be up to count as started.
	Settle() time.Duration
	// Note says why a service is down, or what is wrong with one that is up, in a few words; "" for nothing.
	Note(v *supervisor.Service) string
	// Output counts what a service writes. It returns nil when it knows nothing of the service.
	Output(service string) *client.Output
	// Checks returns what the checks of a service have come to, nil for none.
	Checks(service string) []client.Check
	// Settings returns what is settled for a service and differs from the built-in defaults, nil for nothing.
	Settings(v *supervisor.Service) []client.ConfigEntry

	// ServedBy says who serves the profile of a gateway, in a word of the API.
	ServedBy(v *supervisor.Service) string
	// Beside lets the gateway of that service run beside the one that serves its profile.
	Beside(service string)
	// Topology changes how many gateways serve the profiles; with dry it says what that would do, without a mode how it is.
	Topology(ctx context.Context, mode string, dry bool) (client.TopologyReply, error)

	Runner
	// S6 returns the slots, which answer as s6 does.
	S6() Slots
	// Say shows a text beside the service whose main process is pid, until that process ends.
	Say(ctx context.Context, service string, pid int, text string) error
	// Notice puts a notice into the history; pid is the process that posts it.
	Notice(ctx context.Context, pid int, key, data string) error
	// Reexec checks whether a re-execution is possible and begins it, without waiting for its end. image is the number of the new
	// generation.
	Reexec(ctx context.Context, binary string) (image int, err error)
}

// errElsewhere is wrapped by the errors of [Elsewhere].
var errElsewhere = errors.New("elsewhere")

type elsewhere struct{ error }

func (elsewhere) Is(target error) bool { return target == errElsewhere }

// Elsewhere makes an error of [Core.Find]: another hinit supervises all profiles.
func Elsewhere(err error) error { return elsewhere{err} }

// What users other than root, hinit's own and the agent's may do.
const (
	OthersStatus = "status" // read status, events and health, without log lines
	OthersNone   = "none"   // nothing
)

// Options are the policy of a Server.
type Options struct {
	AgentUID uint32           // this user may control, besides root and hinit's own
	Others   string           // OthersStatus or OthersNone; anything else is OthersNone
	Log      func(msg string) // told about faults of the server; must not block; nil for nobody
	Used     func()           // told when a request is answered; must not block; nil for nobody
}
