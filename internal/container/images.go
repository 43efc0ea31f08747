package container

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/internal/account"
	"hinit/internal/blocking"
	"hinit/internal/boot"
	"hinit/internal/config"
	"hinit/internal/control"
	"hinit/internal/early"
	"hinit/internal/guard"
	"hinit/internal/handover"
	"hinit/internal/proc"
	"hinit/internal/version"
	"hinit/profiles"
	"hinit/supervisor"
)

const (
	// selfImage is the program of this process, also when its file has been replaced or removed.
	selfImage = "/proc/self/exe"
	// freezeTime is how long the logs may take to get what has been read into their files. The supervisor waits meanwhile.
	freezeTime = time.Second
	// leaveTime is how long requests under way may take to get an answer.
	leaveTime = time.Second
	// lastBudget is the time to stop for an image that does not know the configured one.
	lastBudget = 8 * time.Second
)

// images is what a container knows of the images it was and will be.
type images struct {
	number int
	exe    string      // file that the container's program is
	id     string      // that file as it was when this image began, see [handover.FileID]
	faults []time.Time // that made it re-execute itself, of the last minute

	settled atomic.Bool // the boot is over: there is something to hand over
	busy    atomic.Bool // a replacement is under way
	broken  atomic.Bool // a fault is being dealt with
	failed  atomic.Bool // the container ends because of faults

	reporting sync.Mutex // held while something is reported, and while the images change
	reported  uint64     // the last record that was

	mu      sync.Mutex
	refused string // why the last replacement that was asked for did not come about
}

func firstImage() *images {
	exe, _ := os.Readlink(selfImage) // without /proc there is no successor either
	return &images{number: 1, exe: strings.TrimSuffix(exe, " (deleted)"), id: handover.FileID(selfImage)}
}

// settle says that the boot is over.
func (im *images) settle() { im.settled.Store(true) }

func (im *images) refuse(reason string) {
	im.mu.Lock()
	defer im.mu.Unlock()
	im.refused = reason
}

func (im *images) refusal() string {
	im.mu.Lock()
	defer im.mu.Unlock()
	return im.refused
}

// legacy is what an image leaves to the next one.
type legacy struct {
	Format     int
	Number     int
	Exe        string
	Comm       string
	Cause      string // why the images change, for people
	Faults     []time.Time
	Started    time.Time
	ConfigPath string
	Config     []byte
	User       account.User
	Known      bool
	Route      boot.Route
	Env        []string
	Home       string
	Full       bool
	Alone      bool
	Prepared   bool // stage 2 was done; an image that does not say so had done it
	Warnings   []string
	Phases     []client.BootStep
	Repair     *client.Repair
	Inputs     map[string]profiles.Hash
	Present    map[string]bool
	Marked     map[string]bool
	Orders     []unfinished
	Interrupt  time.Time
	Reported   uint64
	Lease      json.RawMessage // nil of an image that had none
	Control    *control.Socket

	Procs, Loop, Logs, Intents json.RawMessage
	S6                         json.RawMessage // nil where hinit does not answer as s6
}

// Reexec implements control.Replacer.
func (a core) Reexec(ctx context.Context, binary string) (int, error) {
	c := a.c
	if binary == "" {
		binary = c.images.exe
	}
	switch {
	case c.loop.Snapshot().Stopping:
		return 0, supervisor.ErrStopping
	case !c.images.settled.Load():
		return 0, errors.New("the boot is not done yet; try again")
	}
	if err := blocking.Within(ctx, blocking.Foreign, "looking at the binary", func() error { return checkImage(binary) }); err != nil {
		return 0, err
	}
	if !c.images.busy.CompareAndSwap(false, true) {
		return 0, errors.New("hinit is being re-executed already")
	}
	if !c.reloads.TryLock() {
		c.images.busy.Store(false)
		return 0, errors.New("a reload is under way; try again")
	}
	c.images.refuse("")
	guard.Go("re-executing", func() {
		defer c.reloads.Unlock()
		defer c.images.busy.Store(false)
		cause := fmt.Sprintf("asked to (from %s)", version.Get())
		err := c.replace(binary, cause)
		c.images.refuse(err.Error())
		c.say("[hinit] cannot become another image: %v; everything goes on as it was", err)
	})
	return c.images.number, nil
}

// replace becomes another image. It returns only with an error, and everything is as it was then.
func (c *container) replace(path, cause string) error {
	socket := c.leaveControl()
	release := func() {}
	err := c.restDisks()
	if err == nil {
		release, err = c.holdS6()
	}
	if err == nil {
		if asked := c.loop.Yield(context.Background(), func() { err = c.become(path, cause, socket, false) }); asked != nil {
			err = asked
		}
		release()
	}
	c.rejoinControl(socket)
	return err
}

// restDisks waits until nothing is being written to the volume; the logs have their own Freeze. execve(2) waits for the end of every other thread, and one that waits in the
// kernel for a frozen file system can't be ended: PID 1 would be deaf until that is thawed.
func (c *container) restDisks() error {
	for end := time.Now().Add(freezeTime); !c.keeper.orders.idle() || c.store.Writing(); {
		if time.Now().After(end) {
			return errors.New("a disk does not answer, and what waits for it would hold up the new image; try again when it does")
		}
		<-time.After(freezeTime / 100)
	}
	return nil
}

// leaveControl takes the control socket out of the server and ends what the server is at. It returns nil when there is none.
func (c *container) leaveControl() *control.Socket {
	socket := c.detachControl()
	c.mu.Lock()
	server := c.server
	c.mu.Unlock()
	if socket != nil && server != nil {
		ctx, cancel := context.WithTimeout(context.Background(), leaveTime)
		defer cancel()
		_ = server.Leave(ctx) // who does not take an answer does without
	}
	return socket
}

func (c *container) detachControl() *control.Socket {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.listener == nil {
		return c.waiting
	}
	socket, err := control.Detach(c.listener)
	if err != nil {
		return nil
	}
	return &socket
}

// rejoinControl serves again after leaveControl.
func (c *container) rejoinControl(socket *control.Socket) {
	if socket == nil {
		return
	}
	var l net.Listener
	err := blocking.Do(blocking.Runtime, func() (err error) {
		l, err = control.Attach(*socket)
		return err
	})
	if err != nil {
		c.warn("the control socket is gone: %v", err)
		return
	}
	c.serve(l)
}

// become is called in the supervisor's loop. It returns only with an error, and the logs go on then. After a fault it makes
// do with what can be handed over.
func (c *container) become(path, cause string, socket *control.Socket, fault bool) error {
	c.images.reporting.Lock()
	defer c.images.reporting.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), freezeTime)
	defer cancel()
	defer c.logs.set.Thaw()
	if err := c.logs.set.Freeze(ctx); err != nil && !fault {
		return err
	}
	state, keep, err := c.export(cause, socket)
	if err != nil {
		return err
	}
	var late []syscall.Signal
	im := handover.Image{
		Path: path, Argv: os.Args, Env: os.Environ(), Keep: keep, State: state,
		Late: func() []syscall.Signal {
			late = c.signals.late()
			return late
		},
	}
	for _, s := range append(early.Meaningful(), unix.SIGPIPE, unix.SIGTTOU, unix.SIGTTIN) {
		im.Signals = append(im.Signals, s.(syscall.Signal)) //nolint:forcetypeassert // that is what they are
	}
	err = im.Replace()
	c.signals.again(late)
	return err
}

// late takes the signals that have come and were not acted upon.
func (s signals) late() []syscall.Signal {
	idle := make(chan os.Signal, 1)
	signal.Notify(idle, early.Meaningful()...)
	signal.Stop(idle) // returns when no signal is on its way to a channel any more
	var late []syscall.Signal
	for {
		select {
		case sig := <-s.orders:
			if n, is := sig.(syscall.Signal); is {
				late = append(late, n)
			}
		default:
			return late
		}
	}
}

// again puts signals back.
func (s signals) again(late []syscall.Signal) {
	for _, sig := range late {
		select {
		case s.orders <- sig:
		default: // so many others have come since
		}
	}
}

// export collects what the next image needs, and the descriptors it needs open. It is called in the supervisor's loop.
func (c *container) export(cause string, socket *control.Socket) (json.RawMessage, []int, error) {
	codec := handover.NewCodec()
	cfg := c.cfg.Load()
	old := legacy{
		Format: handover.Format, Number: c.images.number, Exe: c.images.exe, Comm: comm(), Cause: cause, Faults: c.images.faults,
		Started: c.started, ConfigPath: cfg.Path, Config: cfg.Text, User: c.agent.User, Known: c.agent.Known,
		Route: *c.route.Load(), Env: *c.env.Load(), Home: *c.home.Load(), Full: c.full.Load(), Alone: c.alone.Load(), Prepared: c.prepared.Load(),
		Interrupt: c.orders.interrupt, Reported: c.images.reported, Control: socket,
	}
	c.mu.Lock()
	old.Warnings, old.Phases, old.Repair = c.warnings, c.phases, c.cloneRepair()
	c.mu.Unlock()
	old.Orders = c.keeper.orders.unfinished()
	c.keeper.mu.Lock()
	defer c.keeper.mu.Unlock()
	old.Inputs, old.Present, old.Marked = c.keeper.inputs, c.keeper.present, c.keeper.marked
	var errs [6]error
	var keep, more []int
	old.Procs, errs[0] = c.procs.Export(codec)
	old.Loop, more, errs[1] = c.loop.Export(codec)
	old.Logs, keep, errs[2] = c.logs.set.Export(codec)
	keep = append(keep, more...)
	old.Intents, errs[3] = c.intents.Export(codec)
	if scanner := c.s6.Load(); scanner != nil {
		old.S6, more, errs[4] = scanner.Export(codec)
		keep = append(keep, more...)
	}
	old.Lease, more, errs[5] = c.lease.Export()
	keep = append(keep, more...)
	if err := errors.Join(errs[:]...); err != nil {
		return nil, nil, fmt.Errorf("cannot hand over: %w", err)
	}
	if socket != nil {
		keep = append(keep, socket.FD)
	}
	state, err := codec.Encode(&old)
	return state, keep, err
}

func comm() string {
	name, _ := os.ReadFile("/proc/self/comm")
	return strings.TrimSpace(string(name))
}

// successorMain is the init that goes on for another image of itself.
func successorMain(args []string, sig signals, taken *handover.Taken, err error) int {
	var c *container
	if err == nil {
		c, err = succeed(args, sig, taken)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "[hinit] cannot go on for the image before this one: %v\n", err)
		return lastStop(sig.children, lastBudget)
	}
	return c.life(c.goOn)
}

// succeed makes the container anew that another image had.
func succeed(args []string, sig signals, taken *handover.Taken) (*container, error) {
	codec := handover.NewCodec()
	old := legacy{Prepared: true}
	if err := codec.Decode(taken.State, &old); err != nil {
		return nil, err
	}
	if old.Format != handover.Format {
		return nil, fmt.Errorf("it speaks format %d of the handover and this one %d", old.Format, handover.Format)
	}
	_ = os.WriteFile("/proc/self/comm", []byte(old.Comm), 0) // else it would be that of the link it was executed by
	if old.Config == nil {
		old.Config = []byte{}
	}
	cfg, err := config.Load(config.Options{Path: old.ConfigPath, Text: old.Config, Plain: old.Route.Plain, Env: os.LookupEnv})
	if err != nil {
		return nil, err
	}
	procs, err := proc.Resume(codec, old.Procs)
	if err != nil {
		return nil, err
	}
	agent := boot.NewAgent(old.User, old.Known)
	if old.Route.Plain {
		agent = boot.Caller()
	}
	c, err := assemble(cfg, agent, args, old.Route, sig, procs)
	if err != nil {
		return nil, err
	}
	c.images.number, c.images.exe, c.images.faults, c.images.reported = old.Number+1, old.Exe, old.Faults, old.Reported
	c.images.settle()
	close(c.booted)
	c.started = old.Started
	c.home.Store(&old.Home)
	c.full.Store(old.Full)
	c.alone.Store(old.Alone)
	c.prepared.Store(old.Prepared)
	c.met.boot.Store(true)
	c.met.profiles.Store(true)
	c.warnings, c.phases, c.repair = old.Warnings, old.Phases, old.Repair
	c.env.Store(&old.Env)
	c.orders.interrupt = old.Interrupt
	c.keeper.takeOver(&old)
	if err := errors.Join(
		c.logs.set.Import(codec, old.Logs),
		c.loop.Import(codec, old.Loop, procs.Main),
		c.intents.Import(codec, old.Intents),
	); err != nil {
		return nil, err
	}
	for _, s := range c.loop.Snapshot().Services {
		c.openLog(s.Name, s.Profile, s.Log, s.Kind)
		if s.Kind == supervisor.KindGateway {
			if p, err := c.store.Profile(s.Profile); err == nil && c.keeper.exists(p.Name) { // it only looks at the name
				c.keeper.known = append(c.keeper.known, p)
			}
		}
	}
	if old.Lease != nil {
		if err := c.lease.Resume(old.Lease); err != nil {
			return nil, err
		}
	}
	c.signals.again(taken.Signals)
	c.resumeS6(codec, old.S6)
	c.waiting = old.Control
	c.loop.Resume(supervisor.Remark{Text: fmt.Sprintf("image %d (%s) goes on: %s; deaf to signals for %v",
		c.images.number, version.Get(), old.Cause, taken.Deaf.Round(10*time.Microsecond))})
	return c, nil
}

// goOn is what a successor does instead of a boot.
func (c *container) goOn(ctx context.Context) {
	c.startS6(ctx)
	c.rejoinControl(c.waiting)
	ctx = c.resumeLease(ctx)
	if !c.alone.Load() || !c.route.Load().HasProfiles() {
		return
	}
	c.keeper.start(ctx, c.keeper.known)
	c.keeper.resume()
	for _, o := range c.keeper.inherited {
		c.keeper.orders.submit(o.Verb, o.Service, o.Profile, 0)
	}
	done := c.repair != nil && c.repair.Done
	guard.Go("repairing owners", func() { c.repairOwners(ctx, c.cfg.Load(), !done) })
}
