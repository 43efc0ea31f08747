package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// restTime returns how long idle candidates are watched. It covers work that a candidate does every
// minute.
func (b *bench) restTime() time.Duration {
	if b.quick {
		return 2 * time.Second
	}
	return 65 * time.Second
}

// measureIdleAndCommands measures M4, the costs of a candidate while nothing happens, and M6, its commands. All candidates run at the same time,
// because an idle one does not disturb the others.
func (b *bench) measureIdleAndCommands() error {
	n := 500
	if b.quick {
		n = 10
	}
	g, err := startCandidates(b, "M4 and M6", candidatesOf[supervisor](b), n, false)
	defer g.kill()
	if err != nil {
		return err
	}
	if b.wants("M4") {
		if err := b.measureIdle(g, n); err != nil {
			return err
		}
	}
	if b.wants("M6") {
		return b.measureCommands(g)
	}
	return nil
}

// measureIdle measures M4 with n services.
func (b *bench) measureIdle(g *group, n int) error {
	all := slices.Clone(g.instances)
	for _, size := range b.sizes(hinit{}) {
		if size == n {
			continue
		}
		more, err := startCandidates(b, "M4", candidatesOf[hinit](b), size, false)
		defer more.kill()
		if err != nil {
			return err
		}
		all = append(all, more.instances...)
	}
	before := map[*instance]usage{}
	for _, i := range all {
		var err error
		if before[i], err = i.usage(); err != nil {
			return i.withConsole(err)
		}
	}
	<-time.After(b.restTime())
	for _, i := range all {
		after, err := i.usage()
		if err != nil {
			return i.withConsole(err)
		}
		at := strconv.Itoa(len(i.services))
		b.figures.add("M4", at, i.peer.name(), float64(after.switches-before[i].switches))
		b.figures.add("M4 cpu", at, i.peer.name(), ms(after.cpu-before[i].cpu))
	}
	return nil
}

// measureCommands measures M6.
func (b *bench) measureCommands(g *group) error {
	if err := g.each(checkCommands); err != nil {
		return err
	}
	rounds := b.runs
	start := time.Now()
	for round := range rounds {
		if b.timeIsUp(round, start, 0.05, "M6, status") {
			break
		}
		for name, program := range map[string]string{trueName: trueName, emptyName: b.empty} {
			floor, err := timeCommands(nil, "", [][]string{{program}})
			if err != nil {
				return err
			}
			b.figures.add("M6", "status", name, ms(floor))
		}
		if err := g.each(func(i *instance) error { return b.statuses(i) }); err != nil {
			return err
		}
	}
	if err := g.each(stopOne); err != nil {
		return err
	}
	start = time.Now()
	for round := range rounds {
		if b.timeIsUp(round, start, 0.05, "M6, start and stop") {
			break
		}
		if err := g.each(func(i *instance) error { return b.startOne(i) }); err != nil {
			return err
		}
		<-time.After(upTime)
		if err := g.each(func(i *instance) error { return b.endOne(i) }); err != nil {
			return err
		}
	}
	return nil
}

func checkCommands(i *instance) error {
	if _, ok := i.peer.(controllable); !ok {
		return fmt.Errorf("%s has no commands", i.peer.name())
	}
	return nil
}

// commandsOf returns the peer and the environment of its commands.
func (i *instance) commandsOf() (controllable, []string) {
	p, _ := i.peer.(controllable)
	return p, p.environment(i.site)
}

func (b *bench) statuses(i *instance) error {
	p, _ := i.commandsOf()
	took, err := i.status([][]string{p.statusOf(i.site, i.services[len(i.services)/2])})
	if err != nil {
		return err
	}
	b.figures.add("M6", "status", i.peer.name(), ms(took))
	if took, err = i.status(p.statusOfAll(i.site)); err != nil {
		return err
	}
	b.figures.add("M6", "status of all", i.peer.name(), ms(took))
	return nil
}

// status returns how long status commands take. It repeats a command that fails because the
// candidate has not noticed yet that a service is up.
func (i *instance) status(commands [][]string) (time.Duration, error) {
	_, env := i.commandsOf()
	var took time.Duration
	var code exitError
	err := until("a good status", 20*time.Millisecond, func() (bool, error) {
		var err error
		if took, err = timeCommands(env, i.dir, commands); errors.As(err, &code) {
			return false, nil
		}
		return err == nil, err
	})
	if err != nil && code.code != 0 {
		err = fmt.Errorf("%w: %w", err, code)
	}
	return took, err
}

// victim returns the service that the commands start and stop.
func (i *instance) victim() string { return i.services[len(i.services)-1] }

// stopOne stops the victim, so that its next start is visible.
func stopOne(i *instance) error {
	p, env := i.commandsOf()
	if _, err := timeCommands(env, i.dir, [][]string{p.stop(i.site, i.victim())}); err != nil {
		return err
	}
	defer i.watch.forget()
	return until("stop", 50*time.Millisecond, func() (bool, error) {
		_, n, err := i.processes()
		return n == len(i.services)-1, err
	})
}

func (b *bench) startOne(i *instance) error {
	p, env := i.commandsOf()
	begin, end, err := launch(env, i.dir, p.start(i.site, i.victim()))
	if err != nil {
		return err
	}
	if i.last, err = i.watch.next(1, i); err != nil {
		return err
	}
	b.figures.add("M6", "start", i.peer.name(), ms(i.last.at.Sub(begin)))
	return end()
}

func (b *bench) endOne(i *instance) error {
	fd, err := unix.PidfdOpen(i.last.pid, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	p, env := i.commandsOf()
	begin, end, err := launch(env, i.dir, p.stop(i.site, i.victim()))
	if err != nil {
		return err
	}
	if err := waitEnd(fd); err != nil {
		return err
	}
	b.figures.add("M6", "stop", i.peer.name(), ms(time.Since(begin)))
	return end()
}
