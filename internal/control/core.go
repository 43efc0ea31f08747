package control

import (
	"context"
	"time"

	"hinit/client"
	"hinit/supervisor"
)

// Backend holds the functions of PID 1 that the server calls. All of them must be set; the linter checks this. They may be called
// from any goroutine. A function without a context does not block; a function with a context returns when the context ends.
type Backend struct {
	Loop

	// StartRun starts a one-shot run of a command, or returns the existing run with the same tag. The server has not checked the
	// names in the request. byRoot reports whether root sent the request; service is the service that the sender belongs to, or "".
	StartRun func(ctx context.Context, r client.RunRequest, byRoot bool, service string) (client.Run, error)
	Runs     Runs

	// Command stores an order for a service durably, and carries it out. ctx holds the author of the order, see
	// [supervisor.WithAuthor]. service is a name from a snapshot. When Command returns nil, the next snapshot shows the effect.
	// If ctx ends first, the order stays in force, and the error describes the order's progress. An error of [supervisor.Loop.Do]
	// is sent to the client with its kind, any other error with its text only.
	Command func(ctx context.Context, verb client.Verb, service string) error
	// Rescan updates the services to match the profiles on disk. When it returns, the snapshot shows the result.
	Rescan func(ctx context.Context) error
	// Find works like Rescan, but looks for only one service that is not in the snapshot. name is the name of the service
	// or of its profile. An error of [client.KindFailed] means that another hinit supervises the profiles; the server sends it to
	// the client unchanged.
	Find func(ctx context.Context, name string) error
	// Reload rereads the configuration, applies it, and returns the changes.
	Reload func(ctx context.Context, how client.Reload) (client.ReloadReply, error)
	// Examine examines the data volume. If ctx ends first, it returns the findings so far and a finding that the examination has
	// not finished.
	Examine func(ctx context.Context) client.Findings
	// Reexec checks whether a re-execution is possible, and begins it without waiting for its end. binary is the program to
	// execute, or "" for the current program. image is the number of the current program in the sequence of re-executions.
	Reexec func(ctx context.Context, binary string) (image int, err error)

	// Config returns the effective settings of the configuration.
	Config func() []client.ConfigEntry
	// Init returns the facts about hinit itself. The server sets Stopping, Orphans, UptimeSeconds and Cmd.
	Init func() client.Init
	// StartDelay returns how long a service that can't report readiness must be up until its start has succeeded.
	StartDelay func() time.Duration

	Boot
	ServiceFacts
	Gateways

	// S6 gives access to the service directories of s6 (slots). It returns nil if hinit does not emulate s6.
	S6 func() Slots
}

// Loop is the part of [supervisor.Loop] that the server uses.
type Loop interface {
	Snapshot() *supervisor.Snapshot
	News() <-chan struct{}
	History() *supervisor.Ring
	Orphans() uint64
	Do(ctx context.Context, e supervisor.Event) error
	Sweep(ctx context.Context) error
}

// Boot is the part of a [Backend] that concerns the boot, which registers the services.
type Boot struct {
	// AwaitBoot returns nil when the boot is over. It returns an error if the caller's process, pid, is part of the boot.
	AwaitBoot func(ctx context.Context, pid int) error
	// Booting reports whether the boot is in progress, and returns the hook that runs, or nil.
	Booting func() (bool, *client.BootHook)
	// Expected returns the services that the boot will register and that are not in the snapshot yet. If all is set, Expected
	// first waits until all of them are known or ctx ends. It returns nil once the boot is over.
	Expected func(ctx context.Context, all bool) []*supervisor.Service
}

// ServiceFacts is the part of a [Backend] with facts about services that the supervisor does not know.
type ServiceFacts struct {
	// Note returns a short reason why a service is down, or a short description of the fault of a service that is up. It
	// returns "" if there is nothing to say.
	Note func(v *supervisor.Service) string
	// Output returns the counts of a service's output, or nil for a service without a log.
	Output func(service string) *client.Output
	Checks Checks
	Configured
}

// Configured gives access to the facts about a service that come from the configuration.
type Configured interface {
	// Isolation returns the isolation of a gateway and the parts that are in force, or nil without isolation.
	Isolation(v *supervisor.Service) *client.Isolation
	// Limits returns the limits of a service that need a control group, and the mechanism that enforces each. It returns nil if
	// there are no such limits.
	Limits(v *supervisor.Service) []client.Limit
	// Settings returns the settings of a service that differ from the built-in defaults, or nil.
	Settings(service string) []client.ConfigEntry
}

// Checks gives access to the checks of all services.
type Checks interface {
	// Checks returns the results of a service's checks, or nil.
	Checks(service string) []client.Check
	// PauseChecksUntil pauses the checks of a service until the time paused, or runs them now if paused is zero.
	PauseChecksUntil(service string, paused time.Time) error
}

// Gateways is the part of a [Backend] that concerns the assignment of profiles to gateways.
type Gateways struct {
	// ServedBy returns the gateway that serves the profile of gateway v, as a ServedBy value of package client.
	ServedBy func(v *supervisor.Service) string
	// AllowOwnGateway allows the gateway with the given name to run, although another gateway serves its profile.
	AllowOwnGateway func(service string)
	// Topology changes the number of gateways that serve the profiles. If dry is set, it only returns what the change would do.
	// If mode is "", it returns the current topology.
	Topology func(ctx context.Context, mode string, dry bool) (client.TopologyReply, error)
}

// Options holds the settings of a Server.
type Options struct {
	AgentUID uint32           // the agent's user, which may control hinit like root and hinit's own user
	Others   string           // rights of other users: an Others constant of package config; any other value means OthersNone
	Log      func(msg string) // called with messages about faults of the server; must not block
	// Denies reports whether a process is refused even if its user has access. gone reports whether the process has ended, because
	// its PID may then belong to another process.
	Denies func(pid int, uid uint32, gone func() bool) bool
	Used   func() // called after each answered request; must not block

	// Say writes a line to the container log. Warn adds a warning that the status shows until the container ends. Only an
	// [Endpoint] uses Say and Warn.
	Say, Warn func(format string, args ...any)
}
