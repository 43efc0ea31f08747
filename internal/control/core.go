package control

import (
	"context"
	"time"

	"hinit/client"
	"hinit/supervisor"
)

// Backend is the part of PID 1 that the server needs. All functions must be set (the linter checks it), and may be called from
// any goroutine. Functions without a context don't block. Functions with a context return when the context ends.
type Backend struct {
	Loop

	// StartRun starts a one-shot run, or returns the existing run with the same tag. The names in r are not checked. byRoot
	// means that root has requested the run. service is the service of the client, or "".
	StartRun func(ctx context.Context, r client.RunRequest, byRoot bool, service string) (client.Run, error)
	Runs     Runs

	// Command stores an order durably and carries it out. ctx has the author, see [supervisor.WithAuthor], and service is a
	// name from a snapshot. When Command returns nil, the next snapshot shows the effect. If ctx ends first, the order stays in
	// force, and the error describes its progress. Clients see the kind of an error only if the error comes from
	// [supervisor.Loop.Do].
	Command func(ctx context.Context, verb client.Verb, service string) error
	// Rescan makes the services match the profiles on disk. When it returns, the snapshot shows them.
	Rescan func(ctx context.Context) error
	// FindProfile is Rescan for a single service that the snapshot lacks, by its name or the name of its profile. An error of
	// [client.KindFailed] says that another hinit supervises the profiles; the client gets this error unchanged.
	FindProfile func(ctx context.Context, name string) error
	// Reload reads the configuration again, applies it, and returns what has changed.
	Reload func(ctx context.Context, how client.Reload) (client.ReloadReply, error)
	// Examine examines the data volume. If ctx ends first, it returns the findings so far, and reports that the examination is
	// incomplete.
	Examine func(ctx context.Context) client.Findings
	// Reexec checks whether a re-execution is possible and begins it, without waiting for its end. binary is the new program;
	// "" means the present program. image is the number of the present program: 1 at first, and one more after each
	// re-execution.
	Reexec func(ctx context.Context, binary string) (image int, err error)

	// Config returns the configuration in force.
	Config func() []client.ConfigEntry
	// Init returns the part of the status about hinit itself. The server adds Stopping, Orphans, UptimeSeconds and Cmd.
	Init func() client.Init
	// SettleTime returns the time after which a running service that can't report readiness counts as started.
	SettleTime func() time.Duration

	Boot
	ServiceFacts
	Gateways

	// S6Slots gives access to the slots, the service directories of s6. It returns nil if hinit doesn't emulate s6.
	S6Slots func() Slots
}

// Loop is the part of [supervisor.Loop] that the server needs.
type Loop interface {
	Snapshot() *supervisor.Snapshot
	Changed() <-chan struct{}
	History() *supervisor.Ring
	Orphans() uint64
	Do(ctx context.Context, e supervisor.Event) error
	ReapNow(ctx context.Context, dead ...int) error
}

// Boot is the part of a [Backend] about the boot. During the boot, services are registered.
type Boot struct {
	// AwaitBoot returns nil when the boot is over. For a process pid that is part of the boot, it returns an error.
	AwaitBoot func(ctx context.Context, pid int) error
	// BootProgress reports whether the boot is going on, and which hook is running, or nil.
	BootProgress func() (bool, *client.BootHook)
	// ExpectedServices returns the services that the boot has not registered yet. If all is set, it first waits until all these
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
	ServiceConfig
}

// ServiceConfig gives access to the configuration of a service.
type ServiceConfig interface {
	// Isolation returns the isolation of a gateway and its effective parts, or nil.
	Isolation(v *supervisor.Service) *client.Isolation
	// Limits returns the limits of a service that need a control group, and what enforces each limit; nil without such limits.
	Limits(v *supervisor.Service) []client.Limit
	// NonDefaultSettings returns the settings that differ from the built-in defaults, or nil.
	NonDefaultSettings(service string) []client.ConfigEntry
}

// Checks gives access to the health checks of all services.
type Checks interface {
	// Checks returns the results of a service's checks, or nil without checks.
	Checks(v *supervisor.Service) []client.Check
	// PauseChecksUntil pauses the checks of a service until the time paused. With the zero time, it runs the checks now.
	PauseChecksUntil(service string, paused time.Time) error
}

// Gateways is the part of a [Backend] that assigns gateways to profiles.
type Gateways struct {
	// ServedBy returns which gateway serves the profile of gateway v, as a ServedBy value of package client.
	ServedBy func(v *supervisor.Service) string
	// SetOwnGatewayAllowed lets the gateway run although another gateway serves its profile.
	SetOwnGatewayAllowed func(service string)
	// Topology changes how many gateways serve the profiles. If dry is set, it changes nothing, and
	// returns the changes that it would make. If mode is "", it returns the present topology.
	Topology func(ctx context.Context, mode string, dry bool) (client.TopologyReply, error)
}

// Options are the settings of a Server.
type Options struct {
	AgentUID   uint32           // uid of the agent, which may control hinit like root and hinit's own user
	OtherUsers string           // rights of other users: an Others constant of package config; anything else means OthersMayDoNothing
	Log        func(msg string) // function for messages about faults of the server; it must not block
	// IsDenied reports whether the server must refuse a process because it belongs to an isolated profile. gone reports whether
	// the process has ended. Its PID may then belong to another process.
	IsDenied  func(pid int, uid uint32, gone func() bool) bool
	OnRequest func() // called after each request; it must not block

	// Say writes a line to the container log. Warn adds a warning to the status, for the life of the container. Only an
	// [Endpoint] uses them.
	Say, Warn func(format string, args ...any)
}
