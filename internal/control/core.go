package control

import (
	"context"
	"time"

	"hinit/client"
	"hinit/supervisor"
)

// Backend is what the server needs of PID 1. All functions must be set (the linter checks it), and may be called from any
// goroutine. Functions without a context don't block. Functions with a context return when the context ends.
type Backend struct {
	Loop

	// StartRun starts a one-shot run, or returns the run that already has its tag. The names in r are not checked. byRoot says that
	// root asked for it. service is the service of the client, or "".
	StartRun func(ctx context.Context, r client.RunRequest, byRoot bool, service string) (client.Run, error)
	Runs     Runs

	// Command stores an order durably and carries it out. ctx holds the author, see [supervisor.WithAuthor], and service is a
	// name from a snapshot. When Command returns nil, the next snapshot shows the effect. If ctx ends first, the order stays in
	// force, and the error says how far it has got. Clients see the kind of an error only if it comes from [supervisor.Loop.Do].
	Command func(ctx context.Context, verb client.Verb, service string) error
	// Rescan makes the services match the profiles on disk. When it returns, the snapshot shows them.
	Rescan func(ctx context.Context) error
	// Find is Rescan for a single service that the snapshot lacks, by its name or the name of its profile. An error of
	// [client.KindFailed] says that another hinit supervises the profiles; the client gets this error unchanged.
	Find func(ctx context.Context, name string) error
	// Reload reads the configuration again, applies it, and returns what has changed.
	Reload func(ctx context.Context, how client.Reload) (client.ReloadReply, error)
	// Examine examines the data volume. If ctx ends first, it returns the findings so far, and reports that the examination is
	// incomplete.
	Examine func(ctx context.Context) client.Findings
	// Reexec checks whether a re-execution is possible and begins it, without waiting for its end. binary is the new program; ""
	// means the program that runs now. image is the number of the program that runs now: 1 at first, and one more after each
	// re-execution.
	Reexec func(ctx context.Context, binary string) (image int, err error)

	// Config returns the configuration in force.
	Config func() []client.ConfigEntry
	// Init returns what hinit says about itself. The server adds Stopping, Orphans, UptimeSeconds and Cmd.
	Init func() client.Init
	// StartDelay returns how long a service that can't report readiness must be up to count as started.
	StartDelay func() time.Duration

	Boot
	ServiceFacts
	Gateways

	// S6 gives access to the slots, the service directories of s6. It returns nil if hinit doesn't emulate s6.
	S6 func() Slots
}

// Loop is what the server needs of [supervisor.Loop].
type Loop interface {
	Snapshot() *supervisor.Snapshot
	Changed() <-chan struct{}
	History() *supervisor.Ring
	Orphans() uint64
	Do(ctx context.Context, e supervisor.Event) error
	ReapNow(ctx context.Context, dead ...int) error
}

// Boot is the part of a [Backend] about the boot, during which the services are registered.
type Boot struct {
	// AwaitBoot returns nil when the boot is over. For a process pid that is part of the boot, it returns an error.
	AwaitBoot func(ctx context.Context, pid int) error
	// BootProgress reports whether the boot is going on, and which hook is running, or nil.
	BootProgress func() (bool, *client.BootHook)
	// ExpectedServices returns the services that the boot is going to register. If all is set, it first waits until all these
	// services are known. After the boot it returns nil.
	ExpectedServices func(ctx context.Context, all bool) []*supervisor.Service
}

// ServiceFacts is the part of a [Backend] with facts about services that the supervisor doesn't have.
type ServiceFacts struct {
	// Note says in a few words why a service is down, or what is wrong with a service that is up. "" means that the service works
	// normally.
	Note func(v *supervisor.Service) string
	// Output returns the counters of a service's log, or nil without a log.
	Output func(service string) *client.Output
	Checks Checks
	Configured
}

// Configured is what the configuration says about a service.
type Configured interface {
	// Isolation returns how a gateway is isolated, and which parts are in force, or nil.
	Isolation(v *supervisor.Service) *client.Isolation
	// Limits returns the limits of a service that need a control group, and what enforces each limit; nil without such limits.
	Limits(v *supervisor.Service) []client.Limit
	// Settings returns the settings that differ from the built-in defaults, or nil.
	Settings(service string) []client.ConfigEntry
}

// Checks are the health checks of all services.
type Checks interface {
	// Checks returns the results of a service's checks, or nil without checks.
	Checks(v *supervisor.Service) []client.Check
	// PauseChecksUntil pauses the checks of a service until the time paused. With the zero time, it runs them now.
	PauseChecksUntil(service string, paused time.Time) error
}

// Gateways is the part of a [Backend] that says and decides which gateway serves which profile.
type Gateways struct {
	// ServedBy says which gateway serves the profile of gateway v, by a ServedBy value of package client.
	ServedBy func(v *supervisor.Service) string
	// SetOwnGatewayAllowed lets the gateway run although another gateway serves its profile.
	SetOwnGatewayAllowed func(service string)
	// Topology changes how many gateways serve the profiles. If dry is set, it changes nothing, and
	// returns the changes that it would make. If mode is "", it returns the present topology.
	Topology func(ctx context.Context, mode string, dry bool) (client.TopologyReply, error)
}

// Options are the settings of a Server.
type Options struct {
	AgentUID   uint32           // agent's user, which may control hinit like root and hinit's own user
	OtherUsers string           // rights of other users: an Others constant of package config; anything else means OthersMayDoNothing
	Log        func(msg string) // function for messages about faults of the server; it must not block
	// IsDenied reports whether the server must refuse a process because it belongs to an isolated profile. gone reports whether
	// the process has ended. Its PID may then belong to another process.
	IsDenied  func(pid int, uid uint32, gone func() bool) bool
	OnRequest func() // the server calls OnRequest after each request; it must not block

	// Say writes a line to the container log. Warn adds a warning to the status, for the life of the container. Only an [Endpoint]
	// uses them.
	Say, Warn func(format string, args ...any)
}
