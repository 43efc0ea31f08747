package container

import (
	"context"
	"errors"
	"time"

	"hinit/client"
	"hinit/internal/boot"
	"hinit/internal/config"
	"hinit/internal/container/logs"
	"hinit/internal/container/voice"
	"hinit/internal/gateways"
	"hinit/profiles"
	"hinit/supervisor"
)

// host is the container as other rooms need it: as [gateways.Host], [tenure.Host] and [owners.Teller].
type host struct {
	*voice.Voice
	*logs.Logs
	c *container
}

var _ gateways.Host = host{}

func (h host) Config() *config.Config { return h.c.cfg.Load() }
func (h host) Remark(text string)     { h.c.loop.Post(supervisor.Remark{Text: text}) }
func (h host) MayServe() error        { return h.c.tenure.Check() }
func (h host) Route() *boot.Route     { return h.c.route.Load() }
func (h host) Fatal(reason string)    { h.c.fatal(reason) }
func (h host) Reset()                 { h.c.keeper.Reset() }

func (h host) Adopt(ctx context.Context, profile string) {
	h.c.owners.Adopt(ctx, h.c.bootOptions(h.Config()), profile)
}

func (h host) HasSlot(service string) bool { return h.c.slots().Has(service) }
func (h host) Withdraw(ctx context.Context, s string) error {
	return h.c.slots().Withdraw(ctx, s)
}

func (h host) SetDown(profile string, down bool) {
	if r := h.c.route.Load(); r.Foreground && profile == r.Profile {
		down = true // the CMD is its gateway
	}
	h.c.slots().SetDown(profiles.SlotName(profile), down)
}

// SetTopology implements gateways.Host.
func (h host) SetTopology(ctx context.Context, t profiles.Topology) error {
	c := h.c
	c.reloads.Lock()
	defer c.reloads.Unlock()
	c.units.SetTopology(t)
	return c.reequip(ctx, c.cfg.Load())
}

// SetBeside implements gateways.Host.
func (h host) SetBeside(ctx context.Context, profile string, on bool) {
	c := h.c
	c.units.SetBeside(profile, on)
	p, err := c.store.Profile(profile)
	if err == nil {
		err = c.registerGateway(ctx, c.cfg.Load(), p)
	}
	if err != nil {
		c.Say("%v", err)
	}
}

// Register implements gateways.Host.
func (h host) Register(ctx context.Context, p profiles.Profile, start bool, state profiles.State) {
	c, cfg, want := h.c, h.c.cfg.Load(), supervisor.WantDown
	if start {
		want = c.wantAtBoot(profiles.Decision{Profile: p, Start: true})
	}
	slot := c.gatewaySlot(cfg, p, state.Prior() != profiles.Running)
	c.slots().Enqueue(slot) // before the service is known: who sees that in the status finds the slot
	if err := c.registerGatewaySoon(ctx, cfg, p, want, time.Time{})(); err != nil && !errors.Is(err, supervisor.ErrStopping) {
		c.Warn("%v", err)
	}
	c.slots().Publish(ctx, slot)
}

// TakeOver implements tenure.Host.
func (h host) TakeOver(ctx, serving context.Context) {
	c := h.c
	select {
	case <-c.boot.Over():
	case <-ctx.Done():
		return
	}
	c.reloads.Lock()
	defer c.reloads.Unlock()
	if c.reading != nil { // of an earlier tenure, and the volume was slow
		select {
		case <-c.reading:
		case <-serving.Done():
			return
		}
	}
	c.keeper.Reset() // what that has noted since its lease was lost
	if !c.tenure.Serve(serving) {
		return // it is lost again, and whoever watches it waits for it
	}
	cfg := c.cfg.Load()
	c.Say("this container has the lock of %q now and serves its profiles", cfg.Home)
	c.boot.Again()
	if c.prepared.Load() || c.prepare(serving, cfg, nil) {
		c.startServices(serving, cfg)
	}
}

// command asks for a service to be started, stopped or restarted. It brings back a slot that somebody has removed.
func (c *container) command(ctx context.Context, verb client.Verb, service string) error {
	if verb != client.VerbStop && c.loop.Snapshot().Find(service) != nil {
		c.republish(ctx, service)
	}
	return c.keeper.Command(ctx, verb, service)
}
