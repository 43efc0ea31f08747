package container

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/internal/blocking"
	"hinit/internal/boot"
	"hinit/internal/config"
	"hinit/internal/control"
	"hinit/internal/control/show"
	"hinit/internal/guard"
	"hinit/internal/lease"
	"hinit/internal/proc"
	"hinit/internal/s6/scandir"
	"hinit/logrotate"
	"hinit/profiles"
	"hinit/supervisor"
)

// container is the init at work: it knows every room and wires them. The supervisor's loop runs in the main goroutine;
// everything that may wait for a disk or a client has a goroutine of its own and talks to the loop.
type container struct {
	cfg     atomic.Pointer[config.Config]
	agent   boot.Agent
	args    []string                   // the container's CMD as given
	route   atomic.Pointer[boot.Route] // the boot may put another one here
	env     atomic.Pointer[[]string]   // the container's environment; the boot adds to it
	full    atomic.Bool                // the repair of owners has to look everywhere; set like home
	alone   atomic.Bool                // no other init supervises the same profiles
	venv    atomic.Pointer[venv]       // of the agent's program, as it was found last
	home    atomic.Pointer[string]     // HOME of everything started, "" for the configured one; set by the boot before it starts anything
	started time.Time

	procs   *proc.Table
	loop    *supervisor.Loop
	logs    *sinks
	store   *profiles.Store
	intents *profiles.Intents
	keeper  *keeper
	s6      atomic.Pointer[scandir.Scanner] // nil where hinit does not answer as s6

	signals  signals
	orders   *interpreter
	server   *control.Server // under mu, like listener
	listener net.Listener    // of the server
	taking   atomic.Bool     // orders are taken from the FIFO
	lease    *lease.Lease
	prepared atomic.Bool // stage 2 was done
	images   *images
	examiner examiner
	waiting  *control.Socket // of a successor that does not answer yet; nil for none

	mu       sync.Mutex // guards what boot and reload tell the status
	warnings []string
	phases   []client.BootStep
	repair   *client.Repair
	repairs  chan struct{} // asks for another repair of owners, of the homes in repairOf
	repairOf map[string]bool
	logged   chan struct{} // closed when the boot log is written, if there is one to be written; set like reading
	found    atomic.Int64  // profiles that the boot brings up; 0 before it has read them and when it is done
	reading  chan struct{} // closed when the boot has read the profiles; nil when it does not; the boot's
	booted   chan struct{} // closed when the boot is over and all services are known
	expected expected      // what the status shows until then of those that are not
	met      met           // what the boot has done of what services wait for
	reloads  sync.Mutex    // held by the boot, then by one reload at a time
}

// newContainer makes everything but touches nothing that could hang: no data volume, no process.
func newContainer(cfg *config.Config, agent boot.Agent, args []string, route boot.Route, sig signals) (*container, error) {
	procs, err := proc.New()
	if err != nil {
		return nil, err
	}
	return assemble(cfg, agent, args, route, sig, procs)
}

// assemble makes the rooms of a container that has its table of processes.
func assemble(cfg *config.Config, agent boot.Agent, args []string, route boot.Route, sig signals, procs *proc.Table) (*container, error) {
	c := &container{
		agent: agent, args: args, started: time.Now(), procs: procs, repairs: make(chan struct{}, 1), repairOf: make(map[string]bool), signals: sig,
		images: firstImage(), booted: make(chan struct{}),
	}
	c.cfg.Store(cfg)
	c.route.Store(&route)
	c.home.Store(new(string))
	env := boot.ContainerEnv(cfg.Home)
	if route.Plain {
		env = boot.OuterEnv()
	} else if actsAsS6() {
		env = proc.SetEnv(env, map[string]string{"PATH": initPath(cfg.Home)})
	}
	c.env.Store(&env)
	mode, err := logrotate.ParseConsoleMode(cfg.Logs.Console)
	if err != nil {
		return nil, err
	}
	c.logs = newSinks(logrotate.New(logrotate.Options{
		MaxLine: cfg.Logs.MaxLineKB << 10, Console: mode, Mask: cfg.Logs.Mask, Stdout: os.Stdout, Stderr: os.Stderr, Actor: agent.Actor, Warn: c.logFault,
	}))
	c.orders = &interpreter{cmd: route.HasCommand(), tty: controls(os.Stdin), reload: c.reloadAndSay}
	c.loop = supervisor.NewLoop(supervisor.Config{
		Procs: procs, Logs: c.logs, Budget: cfg.Shutdown.Budget,
		Children: sig.children, Hush: proc.Hush(), Signals: sig.orders, OnSignal: c.orders.event, OOMKills: proc.OOMKills(),
		OnPanic: c.loopPanicked, Admit: c.mayStart,
	})
	c.lease = lease.New(cfg.Home, agent.Actor, func(line string) { c.say("[hinit] %s", line) })
	c.store = profiles.Open(cfg.Home, agent.Actor, cfg.Profiles.Marker).Limit(cfg.Profiles.Max)
	c.intents = profiles.NewIntents(c.store)
	c.intents.May = c.lease.Check
	c.keeper = newKeeper(c)
	guard.Handle(c.panicked)
	return c, nil
}

// bootUp is everything that happens once: the control socket, the data volume, the services, the profiles, the CMD. It
// runs beside the loop, so that signals and orphans are dealt with even if a disk hangs. made returns when the threads are there
// that services must not take the place of.
func (c *container) bootUp(ctx context.Context, made func()) {
	defer c.bootIsOver(ctx)
	c.reloads.Lock()
	defer c.reloads.Unlock()
	cfg := c.cfg.Load()
	for _, w := range slices.Concat(cfg.Warnings, config.UnknownVariables(os.Environ())) {
		c.warn("%s", w)
	}
	// Nothing on the volume needs the socket; the first process that is started may, and the end of the container removes it.
	control := make(chan struct{})
	guard.Go("opening the control socket", func() {
		defer close(control)
		step := c.measure("control", c.openControl)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.phases = slices.Insert(c.phases, 0, step) // it was the first to begin
	})
	// The same holds for the directories of s6.
	slots := make(chan struct{})
	guard.Go("making the directories of s6", func() {
		defer close(slots)
		if c.route.Load().Plain || !actsAsS6() {
			return
		}
		step := c.measure("s6", func() error {
			err := c.openS6(ctx)
			if errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EROFS) { // so the container was started, which is no failure
				c.warn("%v", err)
				return nil
			}
			return err
		})
		<-control
		step.Beside = true
		c.mu.Lock()
		defer c.mu.Unlock()
		c.phases = slices.Insert(c.phases, 1, step)
	})
	ready := func() {
		made()
		<-control
		<-slots
	}
	c.expectServices(cfg)
	cmdStarted := false
	startCmd := func() {
		if !cmdStarted {
			cmdStarted = true
			c.slotsForCmd(ctx)
			c.scanS6(ctx)
			c.startCmd(ctx)
		}
	}
	early := func() {
		ready()
		_ = c.meet(ctx, needBoot) // it fails when the container has ended
		startCmd()
	}
	if !c.claim(ctx, ready, early, false) {
		return
	}
	serving := ctx
	if c.alone.Load() {
		serving = c.tenure(ctx)
		if err := c.stage2(serving, cfg, ready); err != nil && serving.Err() == nil {
			ready()
			c.fatal(err.Error())
			return
		}
		c.prepared.Store(serving.Err() == nil)                             // with the lease lost, what was left out is done when it is back
		if c.lease.Status().State == lease.None && !c.route.Load().Plain { // the data directory was not there before
			if !c.claim(ctx, ready, early, true) {
				return
			}
			if c.alone.Load() {
				serving = c.tenure(ctx)
			}
		}
	}
	ready()
	another := c.lease.Status().State == lease.Elsewhere && serving == ctx // from the beginning
	if !c.alone.Load() {
		_ = c.meet(ctx, needBoot) // it fails when the container has ended
	} else if !c.startServices(serving, cfg) && serving.Err() == nil {
		return
	}
	startCmd()
	if c.alone.Load() && c.route.Load().HasProfiles() {
		guard.Go("removing what profile commands have left", func() {
			if err := c.store.Sweep(c.started); err != nil {
				c.warn("%v", err)
			}
		})
	}
	if !c.alone.Load() || !c.route.Load().HasProfiles() {
		c.images.settle() // else the profiles do
	}
	if another && standby() {
		guard.Go("waiting for the lease", func() { c.regain(ctx) })
	}
}

// bootIsOver tells everybody who waits for it, but not before the profiles are known, which may take longer than the boot does.
func (c *container) bootIsOver(ctx context.Context) {
	if c.reading != nil {
		select {
		case <-c.reading:
		case <-ctx.Done():
		}
	}
	close(c.booted)
}

// startServices registers the services and the gateways and starts those that are wanted. It returns false when the
// container is to end.
func (c *container) startServices(ctx context.Context, cfg *config.Config) bool {
	c.phase("services", func() error { return c.registerServices(ctx, cfg) })
	if !c.route.Load().Plain {
		c.phase("profiles", func() error { return c.profiles(ctx, cfg) })
	}
	c.offerServices(cfg) // after those of the gateways
	if cfg.Boot.Strict && c.bootFailed() {
		c.fatal("a boot step has failed, and boot.strict is set")
		return false
	}
	if err := c.meet(ctx, needBoot); err != nil {
		return false
	}
	c.sayTimeline()
	guard.Go("repairing owners", func() { c.repairOwners(ctx, cfg, true) })
	return true
}

// startCmd starts the container's CMD, if it has one.
func (c *container) startCmd(ctx context.Context) {
	if c.route.Load().Supervise {
		c.startStandIn(ctx)
	} else if c.route.Load().HasCommand() {
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
	if !c.route.Load().ProfileNamed {
		active, err := c.store.Active()
		if err != nil {
			c.warn("cannot tell which profile is selected, so it is the default one: %v", err)
		} else if _, err := c.store.Profile(active); err == nil {
			route := *c.route.Load()
			route.Profile = active
			c.route.Store(&route)
		}
	}
	for line := range strings.Lines(boot.Breadcrumb(c.route.Load().Profile)) {
		c.say("%s", strings.TrimSuffix(line, "\n"))
	}
	if len(c.route.Load().Ignored) > 0 {
		c.warn("these words of the CMD have no effect on a supervised gateway: %s", strings.Join(c.route.Load().Ignored, " "))
	}
}

// phase runs one step of the boot, measures it, and goes on whatever comes of it.
func (c *container) phase(name string, step func() error) {
	p := c.measure(name, step)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.phases = append(c.phases, p)
}

func (c *container) measure(name string, step func() error) client.BootStep {
	start := time.Now()
	err := step()
	p := client.BootStep{Name: name, Seconds: time.Since(start).Seconds()}
	if err != nil {
		p.Error = err.Error()
		c.warn("%v", err)
	}
	return p
}

func (c *container) bootFailed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.phases, func(p client.BootStep) bool { return p.Error != "" })
}

// say writes a line of hinit's own to the container's standard error. It never blocks.
func (c *container) say(format string, args ...any) {
	fmt.Fprintln(c.logs.set.Console(2), show.Line(fmt.Sprintf(format, args...)))
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
	warning = show.Line(warning)
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
	var answers []func() error
	for _, name := range sortedKeys(cfg.Services) {
		s := cfg.Services[name]
		u, err := c.serviceUnit(cfg, s)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		c.sayRootsDir(cfg, u)
		want := supervisor.WantDown
		if s.Enabled {
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

// register makes a service known together with its log.
func (c *container) register(ctx context.Context, u supervisor.Unit, want supervisor.Want) error {
	return c.registerSoon(ctx, u, want)()
}

// registerSoon is register for one of many, see [supervisor.Loop.RegisterSoon]. answer must be called. It is the one door through
// which a service gets to the supervisor, so here it is made to wait for the boot.
func (c *container) registerSoon(ctx context.Context, u supervisor.Unit, want supervisor.Want) (answer func() error) {
	u.Needs = c.unmet(u)
	release := c.logs.hold(u.Name)
	c.openLog(u.Name, u.Profile, u.Log, u.Kind)
	if u.Kind == supervisor.KindGateway {
		c.keeper.hideSecretsSoon(u.Name, u.Profile)
	}
	registered := c.loop.RegisterSoon(ctx, u, want)
	return func() error {
		defer release()
		if err := registered(); err != nil {
			return fmt.Errorf("cannot register %s: %w", u.Name, err)
		}
		c.meetLate(u)
		return nil
	}
}

// registerGateway makes the gateway of a profile known. A known one keeps its want.
func (c *container) registerGateway(ctx context.Context, cfg *config.Config, p profiles.Profile) error {
	return c.registerGatewaySoon(ctx, cfg, p, supervisor.WantDown)()
}

// registerGatewaySoon is registerGateway for one of many, see [supervisor.Loop.RegisterSoon]. answer must be called.
func (c *container) registerGatewaySoon(ctx context.Context, cfg *config.Config, p profiles.Profile, want supervisor.Want) (answer func() error) {
	exports := c.exports(p.Name)
	registered := c.registerSoon(ctx, c.gatewayUnit(cfg, p, exports), want)
	return func() error {
		err := registered()
		// Somebody may have registered its slot meanwhile, and the last word was this one's.
		for now := c.exports(p.Name); err == nil && !maps.Equal(now, exports); now = c.exports(p.Name) {
			exports = now
			err = c.register(ctx, c.gatewayUnit(cfg, p, exports), supervisor.WantDown)
		}
		return err
	}
}

// decided registers a gateway that the boot has decided about. Its slot may have been registered before, without what the boot knows;
// then what the boot wants up is asked for.
func (c *container) decided(ctx context.Context, cfg *config.Config, p profiles.Profile, want supervisor.Want) (answer func() error) {
	name := profiles.SlotName(p.Name)
	known := c.loop.Snapshot().Find(name) != nil
	registered := c.registerGatewaySoon(ctx, cfg, p, want)
	return func() error {
		err := registered()
		if err == nil && known && want == supervisor.WantUp {
			err = c.loop.Do(ctx, supervisor.Start{Name: name})
		}
		return err
	}
}

// openLog makes the log of a service known, with the limits that the configuration has for it.
func (c *container) openLog(name, profile, file string, kind supervisor.Kind) {
	cfg := c.cfg.Load()
	limits := cfg.LogLimitsOf(profile)
	if s, own := cfg.Services[name]; own && kind == supervisor.KindService {
		limits = s.Logs
	}
	c.logs.open(name, profile, file, logLimits(limits))
}

// wish writes that the gateway of a profile is wanted because the container's CMD says so, before that gateway starts and writes
// the same file; usually it says so already. The function that it returns waits for the disk.
func (c *container) wish(profile string) (record func() error) {
	if st, err := c.store.ReadState(profile); err == nil && st.HasDesired && st.Desired == profiles.Running {
		c.intents.Note(profile, profiles.Running)
		return func() error { return nil }
	}
	record, err := c.intents.Begin(profile, profiles.Running)
	if err != nil {
		return func() error { return err }
	}
	return record
}

// reconcile decides which gateways start, and registers all of them, each as soon as that is decided. It returns their profiles.
func (c *container) reconcile(ctx context.Context, cfg *config.Config) (read []profiles.Profile, err error) {
	known := false
	record := func() error { return nil } // that the CMD wants a gateway
	var answers []func() error
	writeLog := func() error { return nil }
	keepLog := func(write func() error) { writeLog = write }
	defer c.found.Store(0)
	found := func(n int) { c.found.Store(int64(n)) }
	plan := c.store.Reconcile(profiles.BootOptions{Args: c.args, Getenv: os.Getenv, Log: keepLog, Found: found, Decided: func(d profiles.Decision) {
		want := c.wantAtBoot(d)
		c.offerGateway(cfg, d.Profile, want == supervisor.WantDown)
		if d.Profile.Name == c.route.Load().Profile {
			known = true
			if c.route.Load().Supervise {
				record = c.wish(d.Profile.Name)
			}
		}
		read = append(read, d.Profile)
		c.keeper.note(d.Profile.Name)
		answers = append(answers, c.decided(ctx, cfg, d.Profile, want))
	}})
	c.logSoon(ctx, writeLog)
	c.keeper.expectLate(plan)
	for _, w := range plan.Warnings {
		c.warn("%s", w)
	}
	out := c.logs.set.Console(2)
	for _, line := range plan.Lines {
		fmt.Fprintln(out, show.Line(line))
	}
	c.ceilings(len(plan.Profiles) + len(cfg.Services))
	var failed error
	for _, answer := range answers {
		if err := answer(); failed == nil {
			failed = err
		}
	}
	if failed != nil {
		return read, failed
	}
	switch {
	case !c.route.Load().Supervise || plan.Skipped:
	case known:
		if err := record(); err != nil {
			c.warn("cannot record that the gateway of %q is wanted: %v", c.route.Load().Profile, err)
		}
	default:
		return read, fmt.Errorf("cannot supervise the gateway of profile %q: there is no such profile; create it with: hinit profile create %s", c.route.Load().Profile, c.route.Load().Profile)
	}
	return read, nil
}

// broughtUp is how many profiles have a gateway.
func (c *container) broughtUp() int {
	n := 0
	for _, s := range c.loop.Snapshot().Services {
		if s.Kind == supervisor.KindGateway {
			n++
		}
	}
	return n
}

// bootProfiles is how far the boot has come with the profiles, nil when it is done.
func (c *container) bootProfiles() *client.BootProfiles {
	found := int(c.found.Load())
	if found == 0 {
		return nil
	}
	return &client.BootProfiles{Profiles: found, Done: min(c.broughtUp(), found)}
}

// wantAtBoot is what is wanted of a gateway when the container starts.
func (c *container) wantAtBoot(d profiles.Decision) supervisor.Want {
	named := d.Profile.Name == c.route.Load().Profile
	if c.route.Load().Supervise && named || d.Start && !(c.route.Load().Foreground && named) {
		return supervisor.WantUp
	}
	return supervisor.WantDown
}

// openControl starts to answer on the control socket. Without one the container works, but can't be asked anything.
func (c *container) openControl() error {
	cfg := c.cfg.Load()
	socket := ""
	if cfg.Origin("control.socket") != "default" {
		socket = cfg.Control.Socket
	}
	var place boot.Runtime
	_ = blocking.Do(blocking.Runtime, func() error {
		place = boot.PrepareRuntime(socket, os.LookupEnv, os.Geteuid())
		return nil
	})
	if place.Warning != "" {
		c.warn("%s", place.Warning)
	}
	if place.Socket == "" {
		return errors.New("there is no place for the control socket, so hinit status and its sisters won't work")
	}
	var l net.Listener
	err := blocking.Do(blocking.Runtime, func() (err error) {
		l, err = control.Listen(place.Socket)
		return err
	})
	if err != nil {
		return fmt.Errorf("cannot open the control socket, so hinit status and its sisters won't work: %w", err)
	}
	c.serve(l)
	return nil
}

// serve begins to answer on a socket.
func (c *container) serve(l net.Listener) {
	server := control.New(core{c}, control.Options{
		AgentUID: c.agent.User.UID, Others: c.cfg.Load().Control.Others, Log: func(line string) { c.say("[hinit] control: %s", line) },
	})
	c.mu.Lock()
	c.server, c.listener = server, l
	c.mu.Unlock()
	if dir := filepath.Dir(l.Addr().String()); filepath.IsAbs(dir) { // not beside an abstract name
		c.takeOrders(dir)
	}
	guard.Go("answering on the control socket", func() {
		if err := server.Serve(l); err != nil {
			c.warn("the control socket is gone: %v", err)
		}
	})
}

func (c *container) closeControl(ctx context.Context) {
	c.mu.Lock()
	server := c.server
	c.mu.Unlock()
	if server != nil {
		_ = server.Close(ctx) // what a client still waits for is cut off with the container
	}
}
