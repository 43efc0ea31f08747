package container

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"hinit/internal/config"
	"hinit/profiles"
	"hinit/supervisor"
)

func (c *container) registerServices(ctx context.Context, cfg *config.Config) error {
	var problems []error
	var answers []func() error
	for _, name := range sortedKeys(cfg.Services) {
		s := cfg.Services[name]
		u, err := c.units.Service(cfg, s)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		c.sayRootsDir(cfg, u)
		want := supervisor.WantDown
		if s.WantedUp() {
			want = supervisor.WantUp
		}
		answers = append(answers, c.registerSoon(ctx, u, want))
	}
	for _, answer := range answers {
		if err := answer(); err != nil && (len(problems) == 0 || !errors.Is(err, supervisor.ErrStopping)) {
			problems = append(problems, err)
		}
	}
	return errors.Join(problems...)
}

// sayRootsDir warns of a configured directory that a service isn't started in.
func (c *container) sayRootsDir(cfg *config.Config, u supervisor.Unit) {
	s := cfg.Services[u.Name]
	if u.Spec.Dir != s.Cwd && cfg.Origin("services."+s.Name+".cwd") != "default" {
		c.Warn("%s runs as root, so it starts in / and not in %s, which the agent's user can write", s.Name, s.Cwd)
	}
}

// register makes a service known together with its log.
func (c *container) register(ctx context.Context, u supervisor.Unit, want supervisor.Want) error {
	return c.registerSoon(ctx, u, want)()
}

// registerSoon is register for one of many, see [supervisor.Loop.RegisterSoon]. answer must be called. Every service gets to the
// supervisor through it, and waits for the boot here.
func (c *container) registerSoon(ctx context.Context, u supervisor.Unit, want supervisor.Want) (answer func() error) {
	u.Needs = c.unmet(u)
	c.health.Equip(&u)
	release := c.logs.Hold(u.Name)
	c.logs.Open(u.Name, u.Profile, u.Log, u.Kind)
	if u.Kind == supervisor.KindGateway {
		c.logs.MaskSecrets(u.Name, u.Profile)
	}
	known := c.loop.Snapshot().Find(u.Name) != nil
	if !known { // its first line may be one that a check looks out for
		c.health.Check(&u)
	}
	registered := c.loop.RegisterSoon(ctx, u, want)
	return func() error {
		defer release()
		if err := registered(); err != nil {
			return fmt.Errorf("cannot register %s: %w", u.Name, err)
		}
		if known { // what it tells of a run counts from now on
			c.health.Check(&u)
		}
		c.meetLate(u)
		return nil
	}
}

// exports is what the slot of a profile exports if somebody has registered it.
func (c *container) exports(profile string) map[string]string {
	return c.slots().Exports(profiles.SlotName(profile))
}

// registerGateway makes the gateway of a profile known. A known one keeps its want.
func (c *container) registerGateway(ctx context.Context, cfg *config.Config, p profiles.Profile) error {
	return c.registerGatewaySoon(ctx, cfg, p, supervisor.WantDown, time.Time{})()
}

// registerGatewaySoon is registerGateway for one of many, see [supervisor.Loop.RegisterSoon]. used is when the profile was last used, if
// that is known. answer must be called.
func (c *container) registerGatewaySoon(ctx context.Context, cfg *config.Config, p profiles.Profile, want supervisor.Want, used time.Time) (answer func() error) {
	exports := c.exports(p.Name)
	u := c.units.Gateway(cfg, p, exports)
	u.Policy.Used = used
	registered := c.registerSoon(ctx, u, want)
	return func() error {
		err := registered()
		// Somebody may have registered its slot meanwhile, and the last word was this one's.
		for now := c.exports(p.Name); err == nil && !maps.Equal(now, exports); now = c.exports(p.Name) {
			exports = now
			err = c.register(ctx, c.units.Gateway(cfg, p, exports), supervisor.WantDown)
		}
		return err
	}
}

// What services wait for (contract, section 2).
const (
	needBoot     = "boot"     // the hooks have run, and the profiles have been read or do not answer
	needProfiles = "profiles" // the profiles have been read, and what their last gateways have left is removed
)

// needs are those that are met. Each is set before the supervisor is told.
type needs struct {
	boot, profiles atomic.Bool
	inOrder        atomic.Bool // gateways wait until all profiles are known, so that the one that was used last starts first
}

// mostInOrder is how many profiles are read before the first of their gateways starts.
const mostInOrder = 256

func (n *needs) of(need string) *atomic.Bool {
	if need == needBoot {
		return &n.boot
	}
	return &n.profiles
}

// meet lets everything start that waits for a need.
func (c *container) meet(ctx context.Context, need string) error {
	c.metNeeds.of(need).Store(true)
	return c.loop.Do(ctx, supervisor.Met{Need: need})
}

// unmet returns what a service has to wait for: a gateway for the boot's decision about its profile, a hook for nothing, any other
// service for the boot.
func (c *container) unmet(u supervisor.Unit) []string {
	switch {
	case u.Kind == supervisor.KindService && !c.metNeeds.boot.Load():
		return []string{needBoot}
	case u.Kind == supervisor.KindGateway && !c.metNeeds.profiles.Load() && (!c.keeper.Exists(u.Profile) || c.metNeeds.inOrder.Load()):
		return []string{needProfiles}
	}
	return nil
}

// meetLate tells the supervisor again of needs that were met while a service was registered.
func (c *container) meetLate(u supervisor.Unit) {
	for _, need := range u.Needs {
		if c.metNeeds.of(need).Load() {
			c.loop.Post(supervisor.Met{Need: need})
		}
	}
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
