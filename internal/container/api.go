package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"

	"hinit/client"
	"hinit/internal/blocking"
	"hinit/internal/config"
	"hinit/internal/container/logs"
	"hinit/internal/container/runner"
	"hinit/internal/control"
	"hinit/internal/proc"
	"hinit/internal/tuning"
	"hinit/internal/version"
	"hinit/supervisor"
)

// checks is the part of a [health.Health] that the API shows.
type checks interface {
	Checks(service string) []client.Check
}

// api is the container as the control API sees it.
type api struct {
	*supervisor.Loop // Snapshot, News, History, Orphans
	*logs.Logs       // Output
	*runner.Runner   // StartRun, StopRun, FindRun, RunsSince, RunNews
	checks           // Checks

	c *container
}

func (a api) Settle() time.Duration { return a.c.cfg.Load().Agent.Settle }
func (a api) Note(v *supervisor.Service) string {
	note := a.c.keeper.Note(v)
	if v.State == supervisor.Up && note == "" {
		return a.c.health.Note(v)
	}
	return note
}

// The methods of control.Multiplexer.
func (a api) ServedBy(v *supervisor.Service) string { return a.c.keeper.ServedBy(v) }
func (a api) Beside(service string)                 { a.c.keeper.Beside(service) }

func (a api) Topology(ctx context.Context, mode string, dry bool) (client.TopologyReply, error) {
	if !a.c.route.Load().HasProfiles() {
		return client.TopologyReply{}, errors.New("this container has no gateways")
	}
	return a.c.keeper.Topology(ctx, mode, dry)
}

// Settings implements control.Describer.
func (a api) Settings(v *supervisor.Service) []client.ConfigEntry {
	switch v.Kind {
	case supervisor.KindGateway:
		return wireEntries(a.c.cfg.Load().InForceProfile(v.Profile))
	case supervisor.KindService:
		return wireEntries(a.c.cfg.Load().InForceService(v.Name))
	case supervisor.KindCmd, supervisor.KindHook, supervisor.KindStandIn, supervisor.KindRun, supervisor.KindCheck:
	}
	return nil
}

func wireEntries(entries []config.Entry) (out []client.ConfigEntry) {
	for _, e := range entries {
		out = append(out, client.ConfigEntry{Key: e.Key, Value: e.Value, Origin: e.Origin})
	}
	return out
}

// Ping answers when the supervisor's loop does.
func (a api) Ping(ctx context.Context) error { return a.c.loop.Do(ctx, supervisor.Tick{}) }

func (a api) Command(ctx context.Context, verb client.Verb, service string) error {
	return a.c.command(ctx, verb, service)
}

// AwaitBoot implements control.Core.
func (a api) AwaitBoot(ctx context.Context, pid int) error {
	if a.c.boot.IsOver() {
		return nil
	}
	for _, s := range a.c.loop.Snapshot().Services {
		if s.Kind == supervisor.KindHook && proc.InSession(pid, s.PID) {
			return errors.New("the boot waits for the one who asks")
		}
	}
	select {
	case <-a.c.boot.Over():
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the boot is not done: %w", context.Cause(ctx))
	}
}

func (a api) Rescan(ctx context.Context) error {
	if !a.c.route.Load().HasProfiles() {
		return nil // it has no profiles
	}
	if a.c.tenure.Check() != nil {
		return nil // nothing that it would find is supervised here
	}
	if a.c.loop.Snapshot().Stopping {
		return supervisor.ErrStopping
	}
	return a.c.keeper.Rescan(ctx)
}

// Find looks for a profile that has just been made. A name can be that of its slot, or of a profile that is called like one.
func (a api) Find(ctx context.Context, name string) error {
	if err := a.c.tenure.Check(); err != nil {
		return control.Elsewhere(err)
	}
	if !a.c.route.Load().HasProfiles() {
		return nil
	}
	return a.c.keeper.Find(ctx, name)
}

func (a api) Config() []client.ConfigEntry {
	return wireEntries(a.c.cfg.Load().Effective())
}

func (a api) Init() client.Init {
	c := a.c
	usedUp := ""
	_ = blocking.Do(blocking.Short, func() error {
		usedUp = tuning.ProcessesUsedUp(c.leaders)
		return nil
	})
	plain := ""
	if c.route.Load().Plain {
		plain = c.cfg.Load().Path
	}
	info := client.Init{
		Plain: plain,
		PID:   os.Getpid(), Version: version.Get().String(), StartedAt: c.started, Home: c.cfg.Load().Home,
		Subreaper: os.Getpid() != 1, Goroutines: runtime.NumGoroutine(), Booting: !c.boot.IsOver(), Hook: c.boot.Hook(),
		Binary: c.generation.Exe, BinaryID: c.generation.ID, Image: c.generation.Number, ReexecError: c.generation.Refusal(),
		Warnings: c.boot.Warnings(), Boot: c.boot.Steps(), BootProfiles: c.boot.Profiles(c.broughtUp()), Repair: c.owners.Status(),
	}
	if usedUp != "" {
		info.Warnings = append(info.Warnings, usedUp)
	}
	if c.route.Load().HasProfiles() {
		info.Lease = c.tenure.Status()
	}
	return info
}

// leaders are the main processes of the services, by name.
func (c *container) leaders() map[string]int {
	leaders := make(map[string]int)
	for _, s := range c.loop.Snapshot().Services {
		leaders[s.Name] = s.PID
	}
	return leaders
}

// Examine implements control.Core.
func (a api) Examine(ctx context.Context) client.Findings {
	if a.c.route.Load().Plain {
		return nil // it has no data volume
	}
	return a.c.volume.Examine(ctx)
}

// S6 has what the control server asks of slots.
func (a api) S6() control.Slots { return a.c.slots() }

// Notice implements control.Core.
func (a api) Notice(ctx context.Context, pid int, key, data string) error {
	n := supervisor.Remark{Text: "notice " + key, Key: key, Data: data}
	if data != "" {
		n.Text += ": " + data
	}
	for _, v := range a.c.loop.Snapshot().Services {
		if proc.InSession(pid, v.PID) {
			n.Service = v.Name
			break
		}
	}
	return a.c.loop.Do(ctx, n)
}

// Say implements control.Talker.
func (a api) Say(ctx context.Context, service string, pid int, text string) error {
	v := a.c.loop.Snapshot().Find(service)
	if v == nil || v.PID == 0 || v.PID != pid {
		return &client.Error{Kind: client.KindNotAllowed, Message: fmt.Sprintf("process %d is not the main process of %q", pid, service)}
	}
	return a.c.loop.Do(ctx, supervisor.Ready{Name: v.Name, Run: v.Run, Ready: v.Ready, Said: text})
}
