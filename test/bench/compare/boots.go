package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"
)

// sizes returns the numbers of services with which a peer is measured. hinit has larger ones too,
// to show how its costs grow.
func (b *bench) sizes(p peer) []int {
	switch {
	case b.quick:
		return []int{1, 10}
	case p.name() == hinitName || p.name() == beforeName || p.name() == loopName:
		return []int{1, 10, 100, 500, 2000}
	case p.name() == nitroName:
		return []int{1, 10, 100}
	}
	return []int{1, 10, 100, 500}
}

// measureBoots measures M1, M2 and M10: the time until all services run, the memory then, the time from TERM until process 1 is gone,
// and a second start. Every candidate takes part in the same number of rounds, each in a random order.
func (b *bench) measureBoots() error {
	start := time.Now()
	for round := range b.runs {
		if b.timeIsUp(round, start, 0.5, "M1, M2, M10") {
			break
		}
		for _, n := range b.sizes(hinit{}) {
			for _, p := range shuffled(candidatesOf[supervisor](b)) {
				own := b.sizes(p)
				if n > slices.Max(own) || n > maxShared && round >= fewRounds {
					continue
				}
				at := fmt.Sprintf("%s with %d services", p.name(), n)
				begin := time.Now()
				if err := b.boot(p, n, round); err != nil {
					if err = b.drop(p, fmt.Sprintf("M1, M2 and M10 with %d services", n), err); err != nil {
						return err
					}
				}
				b.progress("%s: %s", at, time.Since(begin).Round(time.Millisecond))
			}
		}
	}
	return nil
}

const (
	// Number of rounds in which candidates get a second or more to come to rest.
	settledRounds = 3
	// maxShared is the largest number of services with which all candidates are measured. Only hinit and the loop have larger
	// ones, in fewRounds, to see how costs grow.
	maxShared = 500
	fewRounds = 2
	// A little longer than the time after which an idle hinit gives memory back a second time.
	secondReleaseWait = 3 * time.Second
)

// shuffled returns a copy in random order, so that no candidate always follows the same one.
func shuffled[T any](all []T) []T {
	all = slices.Clone(all)
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

func (b *bench) boot(p supervisor, n, round int) error {
	s, err := b.newSite(n)
	if err != nil {
		return err
	}
	i, err := b.start(p, s)
	if err != nil {
		return err
	}
	defer i.kill()
	at := strconv.Itoa(n)
	took, err := i.timeBoot()
	if err != nil {
		return err
	}
	b.figures.add("M2", at, p.name(), ms(took))
	if round >= settledRounds || !b.wants("M1", "M10") {
		return nil
	}
	if err := i.awaitRest(); err != nil {
		return err
	}
	if _, ours := p.(hinit); ours {
		<-time.After(secondReleaseWait)
	}
	if p.name() != loopName {
		m, err := i.memory()
		if err != nil {
			return err
		}
		b.figures.add("M1", at, p.name(), mb(m.pss))
		b.figures.add("M1 private", at, p.name(), mb(m.private))
		b.figures.add("M1 tables", at, p.name(), mb(m.tables))
		b.figures.add("M1 processes", at, p.name(), float64(m.processes))
	}
	if o, ok := p.(controllable); ok && b.wants("M6") {
		took, err := i.status(o.statusOfAll(s))
		if err != nil {
			return i.withConsole(err)
		}
		b.figures.add("M6 all", at, p.name(), ms(took))
		if err := b.measureUsedMemory(i, o, at); err != nil {
			return err
		}
	}
	if b.wants("M10") {
		took, err := i.terminate(p.stopSignal())
		if err != nil {
			return err
		}
		b.figures.add("M10", at, p.name(), ms(took))
		i.watch.close()
		return b.measureSecondBoot(p, s)
	}
	return nil
}

// measureSecondBoot measures a repeated boot in a site, as after a container restart.
func (b *bench) measureSecondBoot(p supervisor, s *site) error {
	i, err := b.startPrepared(p, s)
	if err != nil {
		return err
	}
	defer i.kill()
	took, err := i.timeBoot()
	if err != nil {
		return err
	}
	b.figures.add("M2 again", strconv.Itoa(len(s.services)), p.name(), ms(took))
	return nil
}

// statusesBefore is the number of status commands before the memory after use is measured.
const statusesBefore = 5

// measureUsedMemory measures the memory after several status commands, when the candidate is idle
// again.
func (b *bench) measureUsedMemory(i *instance, o controllable, at string) error {
	for range statusesBefore - 1 { // One status command already ran, to measure its time.
		if _, err := i.status(o.statusOfAll(i.site)); err != nil {
			return i.withConsole(err)
		}
	}
	if err := i.awaitRest(); err != nil {
		return err
	}
	m, err := i.memory()
	if err != nil {
		return err
	}
	b.figures.add("M1 used", at, o.name(), mb(m.pss))
	return nil
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
func mb(bytes int64) float64     { return float64(bytes) / (1 << 20) }
