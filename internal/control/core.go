package control

import (
	"context"

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
	// Command records durably what is wanted of a service, then acts. verb is "start", "stop" or "restart", service is the
	// name of a service that a snapshot held. When it returns nil, the snapshot shows the effect. The errors of
	// [supervisor.Loop.Do] are understood; the text of any other is given to the client.
	Command(ctx context.Context, verb, service string) error
	// Rescan brings the services in step with the profiles on disk; the snapshot shows the result when it returns.
	Rescan(ctx context.Context) error
	// Reload reads the configuration again and says what changed.
	Reload(ctx context.Context) ([]string, error)
	// Config returns the effective configuration.
	Config() []client.ConfigEntry
	// Init describes hinit itself. The server fills in Stopping, Orphans, UptimeSeconds and Cmd.
	Init() client.Init
}

// Pinger is a Core that can tell whether the supervisor's loop turns. Ping returns nil once the loop has taken in an
// event that means nothing; health asks it.
type Pinger interface {
	Ping(ctx context.Context) error
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
