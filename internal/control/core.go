package control

import (
	"context"
	"errors"
	"time"

	"hinit/client"
	"hinit/supervisor"
)

// Core is PID 1 as the server needs it. Every function is set (the linter sees to that) and may be called from any goroutine. A
// function without a context does not block; a function with one returns when the context ends.
type Core struct {
	Loop

	// StartRun starts a run, or returns the one that has the tag. Names in the request are unchecked.
	StartRun func(ctx context.Context, r client.RunRequest) (client.Run, error)
	Runs     Runs

	// Command records the intent for a service durably, and acts. ctx says who orders it, see [supervisor.WithBy]. service is a name from a snapshot. After nil the snapshot shows
	// the effect. When ctx ends first, the error says how far the command has come, and the command stays in force. Errors of
	// [supervisor.Loop.Do] get their kind; the text of others is given to the client.
	Command func(ctx context.Context, verb client.Verb, service string) error
	// Rescan brings the services in step with the profiles on disk. The snapshot shows the result when it returns.
	Rescan func(ctx context.Context) error
	// Find is Rescan for one service that no snapshot has, by its name or its profile's.
	Find func(ctx context.Context, name string) error
	// Reload reads the configuration again, applies it, and returns the changes.
	Reload func(ctx context.Context, how client.Reload) (client.ReloadReply, error)
	// Examine examines the data volume. When ctx ends, it returns what it has found so far and says so.
	Examine func(ctx context.Context) client.Findings
	// Reexec checks whether a re-execution is possible and begins it, without waiting for its end. image is the number of the new
	// generation.
	Reexec func(ctx context.Context, binary string) (image int, err error)

	// Config returns the effective configuration.
	Config func() []client.ConfigEntry
	// Init describes hinit. The server fills in Stopping, Orphans, UptimeSeconds and Cmd.
	Init func() client.Init
	// Settle is how long a service without readiness has to be up to count as started.
	Settle func() time.Duration

	Boot
	About
	Gateways

	// S6 returns the slots, which answer as s6 does, nil where hinit does not.
	S6 func() Slots
}

// Loop is the part of a [supervisor.Loop] that a Core has.
type Loop interface {
	Snapshot() *supervisor.Snapshot
	News() <-chan struct{}
	History() *supervisor.Ring
	Orphans() uint64
	Do(ctx context.Context, e supervisor.Event) error
	Sweep(ctx context.Context) error
}

// Boot is the part of a [Core] that knows the boot, which registers services.
type Boot struct {
	// AwaitBoot returns nil when the boot is over. It refuses to wait for pid, the caller, when that process is part of the boot.
	AwaitBoot func(ctx context.Context, pid int) error
	// Booting reports whether the boot is under way, and the hook that runs; nil for none.
	Booting func() (bool, *client.BootHook)
	// Expected returns services that the boot is known to register and no snapshot has yet. With all it waits until all are known
	// or ctx ends. It returns nil once the boot is over.
	Expected func(ctx context.Context, all bool) []*supervisor.Service
}

// About is the part of a [Core] that tells more about a service than the supervisor does.
type About struct {
	// Note says why a service is down, or what is wrong with one that is up, in a few words; "" for nothing.
	Note func(v *supervisor.Service) string
	// Output counts what a service writes. It returns nil for a service without a log.
	Output func(service string) *client.Output
	Checks Checks
	Configured
}

// Configured knows what the configuration says of a service.
type Configured interface {
	// Isolation says how a gateway is isolated, and what of it is in force. It returns nil for a service without isolation.
	Isolation(v *supervisor.Service) *client.Isolation
	// Limits returns the limits of a service that take a control group, with what enforces them. It is nil for none.
	Limits(v *supervisor.Service) []client.Limit
	// Settings returns the settings of a service that differ from the built-in defaults, nil for none.
	Settings(service string) []client.ConfigEntry
}

// Checks knows the checks of all services.
type Checks interface {
	// Checks returns the results of the checks of a service, nil for none.
	Checks(service string) []client.Check
	// Steer pauses the checks of a service until a time, or asks them now where that is zero.
	Steer(service string, paused time.Time) error
}

// Gateways is the part of a [Core] that knows which gateway serves which profile.
type Gateways struct {
	// ServedBy says who serves the profile of a gateway, in a word of the API.
	ServedBy func(v *supervisor.Service) string
	// Beside lets the gateway of that service run beside the one that serves its profile.
	Beside func(service string)
	// Topology changes how many gateways serve the profiles. With dry it says what the change would do; without a mode it says how
	// the profiles are served.
	Topology func(ctx context.Context, mode string, dry bool) (client.TopologyReply, error)
}

// errElsewhere is wrapped by the errors of [Elsewhere].
var errElsewhere = errors.New("elsewhere")

type elsewhere struct{ error }

func (elsewhere) Is(target error) bool { return target == errElsewhere }

// Elsewhere makes an error of Core.Find: another hinit supervises all profiles.
func Elsewhere(err error) error { return elsewhere{err} }

// The rights of users other than root, hinit's own and the agent's.
const (
	OthersStatus = "status" // read status, events and health, without log lines
	OthersNone   = "none"   // nothing
)

// Options are the policy of a Server.
type Options struct {
	AgentUID uint32           // this user may control, besides root and hinit's own
	Others   string           // OthersStatus or OthersNone; anything else is OthersNone
	Log      func(msg string) // told about faults of the server; must not block; nil for none
	// ShutOut reports whether a process may do nothing here, whatever its user may; nil for none. gone reports whether the process has
	// ended, so that its number may be another one's.
	ShutOut func(pid int, uid uint32, gone func() bool) bool
	Used    func() // told when a request is answered; must not block; nil for none

	// Say writes a line to the container log; Warn warns as long as the container runs. Only an [Endpoint] uses them.
	Say, Warn func(format string, args ...any)
}
