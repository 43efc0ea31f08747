package personality

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"hinit/client"
	"hinit/internal/blocking"
	"hinit/internal/config"
	"hinit/internal/s6/scandir"
	"hinit/shim"
	"hinit/supervisor"
)

const (
	// variable turns the personality on or off for any image.
	variable = "HINIT_S6"
	// commandDir holds the tools in an image that was made for s6.
	commandDir = "/command"
	// comm is the name of process 1 by which the agent's commands recognise s6.
	comm = "s6-svscan"
)

// Personality is how PID 1 answers as s6. Names are names of services.
type Personality interface {
	// See control.Slots.
	Acts() bool
	Slots(ctx context.Context) []client.Slot
	Slot(ctx context.Context, dir string) (client.Slot, error)
	SlotControl(ctx context.Context, dir, letters string) error
	SlotScan(ctx context.Context, letters string) error

	// Publish makes the directory of a service that hinit runs, and returns when it is complete.
	Publish(ctx context.Context, d Definition)
	// Enqueue makes it later, or when somebody looks for it. It does not block. Made is closed when everything now queued is made.
	Enqueue(d Definition)
	Made() <-chan struct{}
	Withdraw(ctx context.Context, name string) error
	// Has reports whether a service has a directory or is queued for one. It does not block.
	Has(name string) bool
	// SetDown makes or removes the down file of a service.
	SetDown(name string, down bool)
	// Exports returns the variables that the run of a registered gateway exports. It does not block.
	Exports(name string) map[string]string
	// Foreign reports whether somebody else's directory defines a service of that name. It does not block.
	Foreign(name string) bool
	// Scan supervises new directories. It fails when the container has ended.
	Scan(ctx context.Context) error
	// Observe passes a record of the supervisor on. It does not block.
	Observe(r supervisor.Record)

	// Hold stops the scan directory until release is called, HandOver returns what a successor needs, and Start begins the work of
	// one made by [TakeOver].
	Hold() (release func(), err error)
	HandOver() *scandir.Handover
	Start(ctx context.Context)
}

// Off is the personality of an init that does not answer as s6.
var Off Personality = off{}

type off struct{}

func (off) Acts() bool                          { return false }
func (off) Slots(context.Context) []client.Slot { return nil }
func (off) Slot(context.Context, string) (client.Slot, error) {
	return client.Slot{}, supervisor.ErrUnknown
}

func (off) SlotControl(context.Context, string, string) error { return supervisor.ErrUnknown }

func (off) SlotScan(context.Context, string) error { return supervisor.ErrUnknown }
func (off) Publish(context.Context, Definition)    {}
func (off) Enqueue(Definition)                     {}
func (off) Made() <-chan struct{}                  { return closed }
func (off) Withdraw(context.Context, string) error { return nil }
func (off) Has(string) bool                        { return false }
func (off) SetDown(string, bool)                   {}
func (off) Exports(string) map[string]string       { return nil }
func (off) Foreign(string) bool                    { return false }
func (off) Scan(context.Context) error             { return nil }
func (off) Observe(supervisor.Record)              {}
func (off) Hold() (func(), error)                  { return func() {}, nil }
func (off) HandOver() *scandir.Handover            { return nil }
func (off) Start(context.Context)                  {}

var closed = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// Wanted reports whether this init answers as s6: the environment says so, or it is PID 1 of an image made for s6.
func Wanted() bool {
	if v, set := os.LookupEnv(variable); set && v != "" {
		return config.Truthy3(v)
	}
	made := false
	_ = blocking.Do(blocking.Foreign, func() error {
		info, err := os.Stat(commandDir)
		made = err == nil && info.IsDir()
		return nil
	})
	return made && os.Getpid() == 1
}

// Path returns the PATH of everything that the init starts as the agent.
func Path(home string) string {
	path := shim.AgentPath(os.Getenv("PATH"), home)
	if Wanted() {
		path = withCommands(path)
	}
	return path
}

// withCommands adds the directories that s6 puts in front of PATH.
func withCommands(path string) string {
	dirs := filepath.SplitList(path)
	for _, dir := range []string{"/bin", "/usr/bin", commandDir} {
		if !slices.Contains(dirs, dir) {
			dirs = append([]string{dir}, dirs...)
		}
	}
	return strings.Join(dirs, string(filepath.ListSeparator))
}
