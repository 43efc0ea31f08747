package control

import (
	"context"
	"errors"
	"time"

	"hinit/client"
	"hinit/supervisor"
)

// Core is what the server speaks for. All methods may be called from any goroutine. Those without a context must not
// block; those with one must return when it ends.
type Core interface {
	// Snapshot, News, History and Orphans are those of [supervisor.Loop].
	Snapshot() *supervisor.Snapshot
	News() <-chan struct{}
	History() *supervisor.Ring
	Orphans() uint64
	// Command records durably what is wanted of a service, and acts. verb is "start", "stop" or "restart", service is the
	// name of a service that a snapshot held. When it returns nil, both are done and the snapshot shows the effect. When ctx ends
	// before, the error says how far it has come, and the command stays in force. The errors of [supervisor.Loop.Do] are
	// understood; the text of any other is given to the client.
	Command(ctx context.Context, verb, service string) error
	// Rescan brings the services in step with the profiles on disk; the snapshot shows the result when it returns.
	Rescan(ctx context.Context) error
	// Find is Rescan for a service that no snapshot has, by its name or that of its profile: it may look for that one only.
	Find(ctx context.Context, name string) error
	// Reload reads the configuration again, applies it, and says what that has changed.
	Reload(ctx context.Context, how client.Reload) (client.ReloadReply, error)
	// Examine looks at the data volume. When ctx ends before, it returns what it has found until then, and that.
	Examine(ctx context.Context) client.Findings
	// Config returns the effective configuration.
	Config() []client.ConfigEntry
	// Init describes hinit itself. The server fills in Stopping, Orphans, UptimeSeconds and Cmd.
	Init() client.Init
}

// errElsewhere is what [Elsewhere] wraps.
var errElsewhere = errors.New("elsewhere")

type elsewhere struct{ error }

func (elsewhere) Is(target error) bool { return target == errElsewhere }

// Elsewhere makes an error of [Core.Find] that says that there is no such service here because another hinit has them all.
func Elsewhere(err error) error { return elsewhere{err} }

// Pinger is a Core that can tell whether the supervisor's loop turns. Ping returns nil once the loop has taken in an
// event that means nothing; health asks it.
type Pinger interface {
	Ping(ctx context.Context) error
}

// Booter is a Core that does not know all services from the beginning. AwaitBoot returns nil once it does, or as much as it ever
// will. Its error says why that can't be waited for: pid, the process that asks, is part of the boot itself, or ctx has ended.
type Booter interface {
	AwaitBoot(ctx context.Context, pid int) error
	// Booting reports whether the boot is under way, and which hook runs; nil for none.
	Booting() (bool, *client.BootHook)
	// Expected are the services that no snapshot has yet and that the boot will register as far as is known: all of them at the end of
	// ctx, if it is asked for all. It returns nil once the boot is over.
	Expected(ctx context.Context, all bool) []*supervisor.Service
}

// Settler is a Core that says how long a service has to be up to count as started when it can't say itself that it is ready. For
// any other Core it is a second.
type Settler interface {
	Settle() time.Duration
}

// Noter is a Core that knows more about why a service is down than the supervisor does. Note returns it in a few words, "" for
// nothing.
type Noter interface {
	Note(v *supervisor.Service) string
}

// Others says what users may do that are neither root, nor hinit's own, nor the agent's.
const (
	OthersStatus = "status" // read status, events and health, without log lines
	OthersNone   = "none"   // nothing
)

// Options are the policy of a Server.
type Options struct {
	AgentUID uint32           // this user may control, besides root and hinit's own
	Others   string           // OthersStatus or OthersNone; anything else is OthersNone
	Log      func(msg string) // told about faults of the server; must not block; nil for nobody
}
