package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"hinit/client"
	"hinit/internal/boot"
	"hinit/internal/config"
	"hinit/internal/control"
	"hinit/internal/proc"
	"hinit/logrotate"
	"hinit/profiles"
	"hinit/supervisor"
)

// container is the init at work: it knows every room and wires them. The supervisor's loop runs in the main goroutine;
// everything that may wait for a disk or a client has a goroutine of its own and talks to the loop.
type container struct {
	cfg     atomic.Pointer[config.Config]
	agent   identity
	args    []string // the container's CMD as given
	route   boot.Route
	env     atomic.Pointer[[]string] // the container's environment; the boot adds to it
	full    bool                     // the repair of owners has to look everywhere; set like home
	alone   bool                     // no other init supervises the same profiles; set like home
	home    string                   // HOME of everything started, "" for the configured one; set by the boot before it starts anything
	started time.Time

	procs   *proc.Table
	loop    *supervisor.Loop
	logs    *sinks
	store   *profiles.Store
	intents *profiles.Intents
	keeper  *keeper

	server  *control.Server // under mu
	release func()          // gives up the claim on the data directory; nil without one; the boot's

	mu       sync.Mutex // guards what boot and reload tell the status
	warnings []string
	phases   []client.BootStep
	repair   *client.Repair
	repairs  chan struct{} // asks for another repair of owners
	reloads  sync.Mutex    // held by the boot, then by one reload at a time
}

// newContainer makes everything but touches nothing that could hang: no data volume, no process.
func newContainer(cfg *config.Config, agent identity, args []string, route boot.Route, sig signals) (*container, error) {
	procs, err := proc.New()
	if err != nil {
		return nil, err
	}
	c := &container{agent: agent, args: args, route: route, started: time.Now(), procs: procs, repairs: make(chan struct{}, 1)}
	c.cfg.Store(cfg)
	env := containerEnv(cfg.Home)
	c.env.Store(&env)
	mode, err := logrotate.ParseConsoleMode(cfg.Logs.Console)
	if err != nil {
		return nil, err
	}
	c.logs = newSinks(logrotate.New(logrotate.Options{
		MaxLine: cfg.Logs.MaxLineKB << 10, Console: mode, Stdout: os.Stdout, Stderr: os.Stderr, Actor: agent.actor, Warn: c.logFault,
	}))
	signals := &interpreter{cmd: !route.Supervise, tty: isTerminal(os.Stdin), reload: c.reloadAndSay}
	c.loop = supervisor.NewLoop(supervisor.Config{
		Procs: procs, Logs: c.logs, Budget: cfg.Shutdown.Budget,
		Children: sig.children, Signals: sig.orders, OnSignal: signals.event, OOMKills: proc.OOMKills(),
	})
	c.store = profiles.Open(cfg.Home, agent.actor, cfg.Profiles.Marker)
	c.intents = profiles.NewIntents(c.store)
	c.keeper = newKeeper(c)
	return c, nil
}

// bootUp is everything that happens once: the control socket, the data volume, the services, the profiles, the CMD. It
// runs beside the loop, so that signals and orphans are dealt with even if a disk hangs.
func (c *container) bootUp(ctx context.Context) {
	c.reloads.Lock()
	defer c.reloads.Unlock()
	cfg := c.cfg.Load()
	for _, w := range cfg.Warnings {
		c.warn("%s", w)
	}
	c.phase("control", c.openControl)
	if !c.claim(cfg) {
		return
	}
	if c.alone {
		if err := c.stage2(ctx, cfg); err != nil {
			c.fatal(err.Error())
			return
		}
		if c.release == nil && !c.claim(cfg) { // the data directory was not there before
			return
		}
	}
	if c.alone && !c.startServices(ctx, cfg) {
		return
	}
	c.startCmd(ctx)
}

// claim settles whether this init supervises the profiles and the services: not when another one does. Then it runs its
// CMD, if it has one. It returns false when there is nothing to do at all.
func (c *container) claim(cfg *config.Config) bool {
	c.alone = true
	if c.route.DashboardOnly { // made to share a volume with the container that has the gateways
		return true
	}
	release, err := claimHome(cfg.Home)
	if err == nil {
		c.release = release
		return true
	}
	c.alone = false
	if c.route.Supervise {
		c.fatal(fmt.Sprintf("cannot supervise the gateway: %v; ask that one: hinit start %s", err, c.route.Profile))
		return false
	}
	c.warn("%v, so this one runs its CMD and nothing else", err)
	return true
}

// startServices registers the services and the gateways and starts those that are wanted. It returns false when the
// container is to end.
func (c *container) startServices(ctx context.Context, cfg *config.Config) bool {
	c.phase("services", func() error { return c.registerServices(ctx, cfg) })
	c.phase("profiles", func() error { return c.profiles(ctx, cfg) })
	if cfg.Boot.Strict && c.bootFailed() {
		c.fatal("a boot step has failed, and boot.strict is set")
		return false
	}
	if err := c.loop.Do(ctx, supervisor.Met{Need: needBoot}); err != nil {
		return false
	}
	c.sayTimeline()
	go c.repairOwners(ctx, cfg)
	return true
}

// startCmd starts the container's CMD, if it has one.
func (c *container) startCmd(ctx context.Context) {
	if !c.route.Supervise {
		// The CMD writes to the console itself: what hinit has to say before it has to be out first. A console that is
		// stuck does not hold the CMD back.
		patience, done := context.WithTimeout(ctx, syncTime)
		_ = c.logs.set.Sync(patience)
		done()
		if err := c.loop.Register(ctx, c.cmdUnit(), supervisor.WantUp); err != nil && !errors.Is(err, supervisor.ErrStopping) {
			c.warn("cannot start the CMD: %v", err)
		}
	}
}

// whichProfile settles whose gateway the CMD asked for: the one it named, or the one the agent's commands would use.
func (c *container) whichProfile() {
	if !c.route.ProfileNamed {
		active, err := c.store.Active()
		if err != nil {
			c.warn("cannot tell which profile is selected, so it is the default one: %v", err)
		} else if _, err := c.store.Profile(active); err == nil {
			c.route.Profile = active
		}
	}
	for line := range strings.Lines(boot.Breadcrumb(c.route.Profile)) {
		c.say("%s", strings.TrimSuffix(line, "\n"))
	}
	if len(c.route.Ignored) > 0 {
		c.warn("these words of the CMD have no effect on a supervised gateway: %s", strings.Join(c.route.Ignored, " "))
	}
}

// phase runs one step of the boot, measures it, and goes on whatever comes of it.
func (c *container) phase(name string, step func() error) {
	start := time.Now()
	err := step()
	p := client.BootStep{Name: name, Seconds: time.Since(start).Seconds()}
	if err != nil {
		p.Error = err.Error()
		c.warn("%v", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.phases = append(c.phases, p)
}

func (c *container) bootFailed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.phases, func(p client.BootStep) bool { return p.Error != "" })
}

// say writes a line of hinit's own to the container's standard error. It never blocks.
func (c *container) say(format string, args ...any) {
	fmt.Fprintln(c.logs.set.Console(2), printable(fmt.Sprintf(format, args...)))
}

// warn says something that the operator should know for as long as the container runs; status shows it.
func (c *container) warn(format string, args ...any) {
	message := fmt.Sprintf(format, args...)
	if c.remember(message) {
		c.say("[hinit] warning: %s", message)
	}
}

// remember adds to what status shows as warnings. It returns false for one that is there already.
func (c *container) remember(warning string) bool {
	warning = printable(warning)
	c.mu.Lock()
	defer c.mu.Unlock()
	if slices.Contains(c.warnings, warning) {
		return false
	}
	if len(c.warnings) < 100 {
		c.warnings = append(c.warnings, warning)
	}
	return true
}

// logFault is told by a log pump of a fault or its end.
func (c *container) logFault(service, message string) {
	if service == "" {
		service = "console"
	}
	c.say("[hinit] log of %s: %s", service, message)
}

func (c *container) registerServices(ctx context.Context, cfg *config.Config) error {
	var problems []error
	for _, name := range sortedKeys(cfg.Services) {
		s := cfg.Services[name]
		u, err := c.serviceUnit(cfg, s)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		want := supervisor.WantDown
		if s.Enabled {
			want = supervisor.WantUp
		}
		if err := c.register(ctx, u, want); err != nil {
			return err
		}
	}
	return errors.Join(problems...)
}

// register makes a service known together with its log.
func (c *container) register(ctx context.Context, u supervisor.Unit, want supervisor.Want) error {
	cfg := c.cfg.Load()
	limits := cfg.Logs.LogLimits
	if s, own := cfg.Services[u.Name]; own && u.Kind == supervisor.KindService {
		limits = s.Logs
	}
	c.logs.open(u.Name, u.Profile, u.Log, logLimits(limits))
	if err := c.loop.Register(ctx, u, want); err != nil {
		return fmt.Errorf("cannot register %s: %w", u.Name, err)
	}
	return nil
}

// reconcile decides which gateways start, and registers all of them.
func (c *container) reconcile(ctx context.Context, cfg *config.Config) error {
	plan := c.store.Reconcile(profiles.BootOptions{Args: c.args, Getenv: os.Getenv})
	for _, w := range plan.Warnings {
		c.warn("%s", w)
	}
	out := c.logs.set.Console(1)
	for _, line := range plan.Lines {
		fmt.Fprintln(out, line)
	}
	known := false
	for _, d := range plan.Profiles {
		want := supervisor.WantDown
		named := d.Profile.Name == c.route.Profile
		if c.route.Supervise && named {
			known = true
			want = supervisor.WantUp
			if err := c.intents.Set(d.Profile.Name, profiles.Running); err != nil {
				c.warn("cannot record that the gateway of %q is wanted: %v", d.Profile.Name, err)
			}
		} else if d.Start && !(c.route.Foreground && named) {
			want = supervisor.WantUp
		}
		c.keeper.known = append(c.keeper.known, d.Profile)
		if err := c.register(ctx, c.gatewayUnit(cfg, d.Profile), want); err != nil {
			return err
		}
	}
	if c.route.Supervise && !known && !plan.Skipped {
		return fmt.Errorf("cannot supervise the gateway of profile %q: there is no such profile; create it with: hinit profile create %s", c.route.Profile, c.route.Profile)
	}
	return nil
}

// openControl starts to answer on the control socket. Without one the container works, but can't be asked anything.
func (c *container) openControl() error {
	cfg := c.cfg.Load()
	socket := ""
	if cfg.Origin("control.socket") != "default" {
		socket = cfg.Control.Socket
	}
	place := boot.PrepareRuntime(socket, os.LookupEnv, os.Geteuid())
	if place.Warning != "" {
		c.warn("%s", place.Warning)
	}
	if place.Socket == "" {
		return errors.New("there is no place for the control socket, so hinit status and its sisters won't work")
	}
	l, err := control.Listen(place.Socket)
	if err != nil {
		return fmt.Errorf("cannot open the control socket, so hinit status and its sisters won't work: %w", err)
	}
	server := control.New(core{c}, control.Options{
		AgentUID: c.agent.user.UID, Others: cfg.Control.Others, Log: func(line string) { c.say("[hinit] control: %s", line) },
	})
	c.mu.Lock()
	c.server = server
	c.mu.Unlock()
	go func() {
		if err := server.Serve(l); err != nil {
			c.warn("the control socket is gone: %v", err)
		}
	}()
	return nil
}

func (c *container) closeControl(ctx context.Context) {
	c.mu.Lock()
	server := c.server
	c.mu.Unlock()
	if server != nil {
		_ = server.Close(ctx) // what a client still waits for is cut off with the container
	}
}
