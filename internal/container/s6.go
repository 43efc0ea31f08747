package container

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"hinit/internal/boot"
	"hinit/internal/config"
	"hinit/internal/guard"
	"hinit/internal/handover"
	"hinit/internal/proc"
	"hinit/internal/s6/scandir"
	"hinit/profiles"
	"hinit/shim"
	"hinit/supervisor"
)

const (
	// s6Variable turns the personality of s6 on or off, whatever the image has.
	s6Variable = "HINIT_S6"
	// commandDir is where an image that was made for s6 has its tools.
	commandDir = "/command"
	// s6Comm is the name of process 1 by which the agent's commands know s6.
	s6Comm = "s6-svscan"
	// markerTime is how long the end of a gateway waits for its planned-stop marker, without which it takes its end for a fault.
	markerTime = 2 * time.Second
	// holdTime is how long the scan directory may take to come to rest for another image, and to answer in that one.
	holdTime = 3 * time.Second // longer than it takes to announce a stop
)

// actsAsS6 says whether this init is to answer as s6: it was told to, or it is PID 1 of an image that was made for s6.
func actsAsS6() bool {
	if v, set := os.LookupEnv(s6Variable); set && v != "" {
		return config.Truthy3(v)
	}
	var made bool
	look(func() {
		info, err := os.Stat(commandDir)
		made = err == nil && info.IsDir()
	})
	return made && os.Getpid() == 1
}

// s6Path is a PATH with what s6 puts before it where it is missing.
func s6Path(path string) string {
	dirs := filepath.SplitList(path)
	for _, dir := range []string{"/bin", "/usr/bin", commandDir} {
		if !slices.Contains(dirs, dir) {
			dirs = append([]string{dir}, dirs...)
		}
	}
	return strings.Join(dirs, string(filepath.ListSeparator))
}

// initPath is the PATH of everything that the init starts as the agent.
func initPath(home string) string {
	path := shim.AgentPath(os.Getenv("PATH"), home)
	if actsAsS6() {
		path = s6Path(path)
	}
	return path
}

// openS6 makes the directories of s6 and answers from now on as it does. Where it can't, hinit goes on without.
func (c *container) openS6(ctx context.Context) error {
	scanner, err := scandir.Open(ctx, &s6Host{c}, c.ground())
	if err != nil {
		return fmt.Errorf("hinit does not answer as s6: %w", err)
	}
	// Of the whole process, not of the thread that writes (proc(5)).
	if err := os.WriteFile("/proc/self/comm", []byte(s6Comm), 0); err != nil {
		c.warn("cannot be called %s, so the agent's commands do not find it: %v", s6Comm, err)
	}
	c.s6.Store(scanner)
	if c.cfg.Load().Services[scandir.MainHermes].Name != "" {
		return nil // somebody has a use for the name
	}
	return scanner.PublishFixed(ctx, scandir.MainHermes, scandir.Files{
		Run: script(c.agent, nil, "", []string{"sleep", "infinity"}, "This slot stands for the container. hinit runs nothing for it."),
	})
}

// ground is what the directories of s6 are made of.
func (c *container) ground() scandir.Ground {
	g := scandir.Ground{Scan: scandir.DefaultScan, Base: scandir.DefaultBase, Agent: c.agent.Actor, Env: *c.env.Load()}
	if dir := os.Getenv(scandir.ScanVariable); dir != "" {
		g.Scan = filepath.Clean(dir)
	}
	return g
}

// holdS6 brings the scan directory to rest before another image takes it over. release lets it go on.
func (c *container) holdS6() (release func(), err error) {
	scanner := c.s6.Load()
	if scanner == nil {
		return func() {}, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), holdTime)
	defer cancel()
	return scanner.Hold(ctx)
}

// resumeS6 takes the scan directory over from the image before this one, if that answered as s6, and gives the supervisor
// back what that could not hand over of foreign services. It must be called before the loop runs.
func (c *container) resumeS6(codec *handover.Codec, old json.RawMessage) {
	files := make(map[int]*os.File)
	c.loop.Mend(func(u *supervisor.Unit) {
		if u.Policy.Finish && !scandir.Pinned(u.Spec) {
			u.Finish = scandir.Finish(u.Name, u.Spec)
		}
		for _, f := range []*os.File{u.Stdin, u.Stdout, u.Stderr} {
			if f != nil {
				files[handover.Descriptor(f)] = f
			}
		}
	})
	if old == nil {
		return
	}
	scanner, err := scandir.Resume(&s6Host{c}, c.ground(), codec, old, files)
	if err != nil {
		c.warn("hinit does not answer as s6 any more: %v", err)
		return
	}
	c.s6.Store(scanner)
}

// startS6 lets the scan directory that was taken over go on, and waits until it can answer, unless its disk does not.
func (c *container) startS6(ctx context.Context) {
	scanner := c.s6.Load()
	if scanner == nil {
		return
	}
	scanner.Start(ctx)
	select {
	case <-scanner.Resumed():
	case <-time.After(holdTime):
	case <-ctx.Done():
	}
}

// publishGateway makes the slot of a profile's gateway.
func (c *container) publishGateway(ctx context.Context, cfg *config.Config, p profiles.Profile, down bool) {
	scanner := c.s6.Load()
	if scanner == nil {
		return
	}
	c.keeper.mark(p.Name, down)
	if err := scanner.Publish(ctx, profiles.SlotName(p.Name), c.gatewayFiles(cfg, p), down); err != nil && !errors.Is(err, context.Canceled) {
		c.warn("%v", err)
	}
}

// offerGateway has the slot of a profile's gateway made when there is time, or when somebody looks for it.
func (c *container) offerGateway(cfg *config.Config, p profiles.Profile, down bool) {
	if scanner := c.s6.Load(); scanner != nil {
		c.keeper.mark(p.Name, down)
		scanner.Offer(profiles.SlotName(p.Name), c.gatewayFiles(cfg, p), down)
	}
}

// gatewayFiles are the files of a gateway's slot.
func (c *container) gatewayFiles(cfg *config.Config, p profiles.Profile) scandir.Files {
	u := c.gatewayUnit(cfg, p, nil)
	return scandir.Files{
		Run:    script(c.agent, over(c.venvVars(cfg, u.Spec.Dir), c.gatewayEnv(cfg, p)), u.Spec.Dir, u.Spec.Argv, "hinit starts this gateway by itself and does not run this file. To run it does the same."),
		Finish: finishScript(cfg.Restart.ParkOn),
		Log:    c.logScript(cfg, filepath.Dir(u.Log)),
	}
}

const (
	// slotTime is how long the boot log, which says that the slots are there, waits for them on a slow file system.
	slotTime = 20 * time.Second
	// cmdSlotTime is how long the CMD waits for all slots.
	cmdSlotTime = time.Second
)

// logSoon writes the boot log when the slots that were offered so far are there: who waits for that log looks for the slots next.
func (c *container) logSoon(ctx context.Context, write func() error) {
	logged := make(chan struct{})
	c.logged = logged
	var made <-chan struct{}
	if scanner := c.s6.Load(); scanner != nil {
		made = scanner.Offered()
	}
	guard.Go("writing the boot log", func() {
		defer close(logged)
		if made != nil && !within(ctx, slotTime, made) && ctx.Err() == nil {
			c.warn("not all slots of gateways are made after %s, because the file system of the scan directory is slow; the others follow", slotTime)
		}
		if err := write(); err != nil {
			c.warn("cannot write the boot log: %v", err)
		}
	})
}

// slotsForCmd lets a CMD that looks for slots find them, unless there are very many.
func (c *container) slotsForCmd(ctx context.Context) {
	scanner := c.s6.Load()
	if scanner == nil || c.reading == nil || c.route.Load().Supervise || c.route.Load().Foreground {
		return
	}
	select {
	case <-c.reading:
	default:
		return // the volume hangs
	}
	ctx, done := context.WithTimeout(ctx, cmdSlotTime)
	defer done()
	_ = within(ctx, cmdSlotTime, scanner.Offered()) && within(ctx, cmdSlotTime, c.logged) // it starts in any case
}

// within waits for a channel to be closed, and says whether it was.
func within(ctx context.Context, limit time.Duration, closed <-chan struct{}) bool {
	select {
	case <-closed:
		return true
	case <-time.After(limit):
	case <-ctx.Done():
	}
	return false
}

// publishService makes the slot of a service of hinit.yaml.
func (c *container) publishService(ctx context.Context, cfg *config.Config, s config.Service) {
	scanner := c.s6.Load()
	if scanner == nil {
		return
	}
	err := scanner.Publish(ctx, s.Name, c.serviceFiles(cfg, s), !s.Enabled)
	if err == nil {
		err = scanner.SetDown(s.Name, !s.Enabled)
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		c.warn("%v", err)
	}
}

// offerServices has the slots of the services of hinit.yaml made when there is time, or when somebody looks for one.
func (c *container) offerServices(cfg *config.Config) {
	scanner := c.s6.Load()
	if scanner == nil {
		return
	}
	for _, name := range sortedKeys(cfg.Services) {
		s := cfg.Services[name]
		scanner.Offer(name, c.serviceFiles(cfg, s), !s.Enabled)
	}
}

// serviceFiles are the files of the slot of a service of hinit.yaml.
func (c *container) serviceFiles(cfg *config.Config, s config.Service) scandir.Files {
	agent, env, dir := c.agent, c.withHome(s.Env), s.Cwd
	if s.Name == config.DashboardName {
		env = over(c.venvVars(cfg, s.Cwd), env)
	}
	if cred, err := c.agent.CredFor(cfg, s.User); err == nil && cred == nil {
		agent.Cred = nil
		if c.isRoots(nil) {
			env, dir = maps.Clone(s.Env), c.rootDir(dir)
			env["HOME"] = proc.Getenv(c.rootEnv(s.Env), "HOME")
		}
	}
	files := scandir.Files{
		Run: script(agent, env, dir, s.Command, "hinit starts this service by itself and does not run this file. To run it does the same."),
	}
	if s.Log {
		files.Log = c.logScript(cfg, cfg.Logs.Dir+"/"+s.Name)
	}
	return files
}

// republish brings the slot of a service back that somebody has removed.
func (c *container) republish(ctx context.Context, name string) {
	scanner := c.s6.Load()
	if scanner == nil || scanner.Has(name) {
		return
	}
	cfg := c.cfg.Load()
	if s, own := cfg.Services[name]; own {
		c.publishService(ctx, cfg, s)
		return
	}
	profile, ok := profiles.SlotProfile(name)
	if !ok {
		return
	}
	p, err := c.store.Profile(profile)
	if err != nil {
		return
	}
	c.publishGateway(ctx, cfg, p, true)
	// Without what the slot that is gone exported.
	if err := c.registerGateway(ctx, cfg, p); err != nil && !errors.Is(err, supervisor.ErrStopping) {
		c.say("[hinit] %v", err)
	}
}

// withdraw removes the slot of a service that is gone.
func (c *container) withdraw(ctx context.Context, name string) error {
	if scanner := c.s6.Load(); scanner != nil {
		return scanner.Withdraw(ctx, name)
	}
	return nil
}

// hasSlot says whether a service has a slot.
func (c *container) hasSlot(name string) bool {
	scanner := c.s6.Load()
	return scanner != nil && scanner.Has(name)
}

// setDown says by the slot of a profile whether its gateway starts with the container.
func (c *container) setDown(profile string, down bool) {
	scanner := c.s6.Load()
	if scanner == nil {
		return
	}
	if c.route.Load().Foreground && profile == c.route.Load().Profile {
		down = true // the CMD is its gateway
	}
	if err := scanner.SetDown(profiles.SlotName(profile), down); err != nil {
		c.say("[hinit] %v", err)
	}
}

// scanS6 takes in what has been put into the scan directory before hinit looked.
func (c *container) scanS6(ctx context.Context) {
	if scanner := c.s6.Load(); scanner != nil {
		_ = scanner.Scan(ctx) // it fails when the container has ended
	}
}

// s6Host is the container as the scan directory needs it.
type s6Host struct{ c *container }

// Gateway implements scandir.Host.
func (h *s6Host) Gateway(ctx context.Context, profile string, start bool, exports map[string]string) error {
	c := h.c
	if !c.route.Load().HasProfiles() {
		return errors.New("this container has no gateways")
	}
	if err := c.lease.Check(); err != nil {
		return err
	}
	p, err := c.store.Profile(profile)
	if err != nil {
		return err
	}
	want := supervisor.WantDown
	if start {
		want = supervisor.WantUp
	}
	u := c.gatewayUnit(c.cfg.Load(), p, exports)
	c.keeper.mark(profile, !start)
	known := c.loop.Snapshot().Find(u.Name) != nil
	if err := c.register(ctx, u, want); err != nil {
		return err
	}
	if start {
		c.keeper.enqueue(u.Name, func() { // the volume may hang
			if there, err := c.store.Exists(profile); err == nil && !there {
				c.say("[hinit] %s: it was registered, but there is no profile %q, so it fails until there is one: hinit profile create %s", u.Name, profile, profile)
			}
		})
	}
	if known && start { // a known one keeps what is wanted of it
		return c.loop.Do(ctx, supervisor.Start{Name: u.Name})
	}
	return nil
}

// Unregistered implements scandir.Host. What the operator wants of a profile stays as it is on the volume: a slot is gone
// until the next start of the container, a profile is not.
func (h *s6Host) Unregistered(ctx context.Context, service string) {
	c := h.c
	profile, gateway := profiles.SlotProfile(service)
	if gateway {
		marked := make(chan struct{})
		go func() { // the volume may hang
			defer close(marked)
			defer guard.Catch("announcing a stop")
			c.keeper.plannedStop(service, profile)
		}()
		select {
		case <-marked:
		case <-time.After(markerTime):
		}
	}
	var e supervisor.Event = supervisor.Stop{Name: service}
	if gateway && !c.keeper.exists(profile) {
		e = supervisor.Remove{Name: service}
	}
	switch err := c.loop.Do(ctx, e); {
	case err == nil:
		c.say("[hinit] %s: its slot was removed, so it is stopped", service)
	case !errors.Is(err, supervisor.ErrUnknown) && !errors.Is(err, supervisor.ErrStopping):
		c.say("[hinit] %s: its slot was removed, but it cannot be stopped: %v", service, err)
	}
}

// Reserved implements scandir.Host.
func (h *s6Host) Reserved(name string) string {
	switch {
	case name == cmdName, name == scandir.MainHermes, strings.HasPrefix(name, hookPrefix):
		return "the name is taken by hinit itself"
	case h.c.loop.Snapshot().Find(name) != nil:
		return "hinit has a service of that name; `hinit start " + name + "` brings its slot back"
	}
	return ""
}

// Room implements scandir.Host. A foreign service costs more descriptors than others, while it runs and while it does not.
func (h *s6Host) Room() error { return spareDescriptors() }

// Register implements scandir.Host.
func (h *s6Host) Register(ctx context.Context, u supervisor.Unit, want supervisor.Want) error {
	return h.c.register(ctx, u, want)
}

// Do implements scandir.Host.
func (h *s6Host) Do(ctx context.Context, e supervisor.Event) error { return h.c.loop.Do(ctx, e) }

// Snapshot implements scandir.Host.
func (h *s6Host) Snapshot() *supervisor.Snapshot { return h.c.loop.Snapshot() }

// Identity implements scandir.Host.
func (h *s6Host) Identity(root bool) (*proc.Cred, []string) {
	c := h.c
	if root && c.isRoots(nil) {
		return nil, c.rootEnv(nil)
	}
	return c.agent.Cred, proc.SetEnv(*c.env.Load(), c.agentHome(c.cfg.Load()))
}

// Say implements scandir.Host.
func (h *s6Host) Say(format string, args ...any) { h.c.say("[hinit] "+format, args...) }

// script is what a slot of hinit's own has for a program: the same command, in the same place, as the same user.
func script(agent boot.Agent, env map[string]string, dir string, argv []string, comment string) string {
	var b strings.Builder
	b.WriteString(interpreter6() + "# " + comment + "\nset -e\n")
	for _, name := range sortedKeys(env) {
		b.WriteString("export " + name + "=" + quote(env[name]) + "\n")
	}
	if dir != "" {
		b.WriteString("cd " + quote(dir) + "\n")
	}
	words := make([]string, len(argv))
	for i, word := range argv {
		words[i] = quote(word)
	}
	command := strings.Join(words, " ")
	if agent.Cred != nil {
		b.WriteString(`[ "$(id -u)" != 0 ] || exec ` + commandDir + "/s6-setuidgid " + credName(agent.Cred) + " " + command + "\n")
	}
	b.WriteString("exec " + command + "\n")
	return b.String()
}

// credName names a user as s6-setuidgid takes it, whatever the image calls it.
func credName(cred *proc.Cred) string {
	return strconv.FormatUint(uint64(cred.UID), 10) + ":" + strconv.FormatUint(uint64(cred.GID), 10)
}

// finishScript says after which exit codes a gateway is not started again.
func finishScript(parkOn []int) string {
	var b strings.Builder
	b.WriteString(interpreter6() + "# hinit decides by itself, and does not run this file. After these codes it does not start the gateway again.\n")
	b.WriteString("case \"$1\" in\n")
	for _, code := range parkOn {
		b.WriteString("  " + strconv.Itoa(code) + ") exit 125 ;;\n")
	}
	b.WriteString("esac\nexit 0\n")
	return b.String()
}

// logScript is what would write the log that hinit writes.
func (c *container) logScript(cfg *config.Config, dir string) string {
	size := strconv.Itoa(max(cfg.Logs.MaxSizeMB, 1) * 1_000_000)
	argv := []string{commandDir + "/s6-log", "1", "n" + strconv.Itoa(cfg.Logs.Archives), "s" + size, "T", dir}
	return script(c.agent, nil, "", argv, "hinit writes this log by itself and does not run this file.")
}

// interpreter6 is the first line of a script in a slot.
var interpreter6 = sync.OnceValue(func() string {
	var err error
	look(func() { _, err = os.Stat(commandDir + "/with-contenv") })
	if err == nil {
		return "#!" + commandDir + "/with-contenv sh\n"
	}
	return "#!/bin/sh\n"
})

// quote makes one word of a shell.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
