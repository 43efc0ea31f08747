package gateways

import (
	"context"

	"hinit/internal/config"
	"hinit/profiles"
	"hinit/supervisor"
)

// Supervisor is what the Keeper needs of a [supervisor.Loop].
type Supervisor interface {
	Do(ctx context.Context, e supervisor.Event) error
	Sweep(ctx context.Context) error
	Post(e supervisor.Event)
	Snapshot() *supervisor.Snapshot
	News() <-chan struct{}
}

// Host is the rest of PID 1 as the Keeper needs it. Its methods may be called from any goroutine.
type Host interface {
	Config() *config.Config
	// Say writes a line to the container log. Warn does too, and status goes on showing it.
	Say(format string, args ...any)
	Warn(format string, args ...any)
	// MayServe returns an error while this init must not write to the profiles or start their gateways, because another one may own them.
	MayServe() error
	// Adopt gives the files that the gateway of a profile needs to the agent's user. It waits for the disk.
	Adopt(ctx context.Context, profile string)
	// Register makes the slot of a profile that has appeared, and its gateway known to the supervisor. start says that it ran
	// before the container did; state is its state file.
	Register(ctx context.Context, p profiles.Profile, start bool, state profiles.State)
	// SetTopology makes every gateway, from its next start on, learn what an operator has asked for.
	SetTopology(ctx context.Context, t profiles.Topology) error
	// SetBeside makes the gateway of a profile, from its next start on, run beside the one that serves its profile, or not.
	SetBeside(ctx context.Context, profile string, on bool)
	// ReadSecrets tells the console which texts of a profile's .env it must not show of a service. It waits for the disk.
	ReadSecrets(service, profile string)

	// HasSlot reports whether a service has a service directory of s6. Where hinit does not answer as s6, none has one, and the next two
	// methods do nothing.
	HasSlot(service string) bool
	// SetDown makes the down file of a profile's slot say whether the gateway starts with the container.
	SetDown(profile string, down bool)
	// Withdraw removes the slot of a service.
	Withdraw(ctx context.Context, service string) error
}
