package main

import (
	"fmt"
	"strconv"
	"time"
)

// sizes are the numbers of services of which the tables tell; hinit alone is taken further, to see how its costs grow.
func (b *bench) sizes(p peer) []int {
	switch {
	case b.quick:
		return []int{1, 10}
	case p.name() == hinitName || p.name() == loopName:
		return []int{1, 10, 100, 500, 2000}
	}
	return []int{1, 10, 100, 500}
}

// boots takes M1, M2 and M10: from the start until all run, the memory then, and from the TERM until process 1 is gone. Those
// that are compared with the floor in every round take part in all of them, the others in a few.
func (b *bench) boots() error {
	slow := map[string]bool{}
	start := time.Now()
	for round := range b.runs {
		if b.enough(round, start, 0.5, "M1, M2, M10") {
			break
		}
		for _, n := range b.sizes(hinit{}) {
			for _, p := range which[supervisor](b) {
				own := b.sizes(p)
				at := fmt.Sprintf("%s with %d services", p.name(), n)
				rounds := b.runs
				switch {
				case n > own[len(own)-1]:
					continue
				case slow[at] || n > 500:
					rounds = fewRounds
				case p.name() != hinitName && p.name() != loopName:
					rounds = settledRounds
				}
				if round >= rounds {
					continue
				}
				begin := time.Now()
				if err := b.boot(p, n, round); err != nil {
					if err = b.drop(p, fmt.Sprintf("M1, M2 and M10 with %d services", n), err); err != nil {
						return err
					}
				}
				took := time.Since(begin)
				slow[at] = took > slowBoot
				b.progress("%s: %s", at, took.Round(time.Millisecond))
			}
		}
	}
	return nil
}

const (
	// settledRounds is in how many rounds candidates are waited for to come to rest, which takes a second each.
	settledRounds = 3
	// fewRounds is for those that take longer than slowBoot from start to end. They are so far from the others that two samples
	// tell enough.
	fewRounds = 2
	slowBoot  = 4 * time.Second
)

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
	took, err := i.booted()
	if err != nil {
		return err
	}
	b.figures.add("M2", at, p.name(), ms(took))
	if round >= settledRounds || !b.wants("M1", "M10") {
		return nil
	}
	if err := i.settle(); err != nil {
		return err
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
	if o, ok := p.(operated); ok && b.wants("M6") {
		took, err := i.status(o.statusOfAll(s))
		if err != nil {
			return i.failure(err)
		}
		b.figures.add("M6 all", at, p.name(), ms(took))
	}
	if b.wants("M10") {
		took, err := i.terminate(p.stopSignal())
		if err != nil {
			return err
		}
		b.figures.add("M10", at, p.name(), ms(took))
	}
	return nil
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
func mb(bytes int64) float64     { return float64(bytes) / (1 << 20) }
