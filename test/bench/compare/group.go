package main

import (
	"fmt"
	"slices"
)

// group is a set of running candidates. All of them idle while one is measured.
type group struct {
	bench     *bench
	measure   string
	instances []*instance
}

func (g *group) kill() {
	for _, i := range g.instances {
		i.kill()
	}
	g.instances = nil
}

// startCandidates starts candidates with n services each, and waits until all are idle.
func startCandidates[T peer](b *bench, measure string, peers []T, n int, fast bool) (*group, error) {
	g := &group{bench: b, measure: measure}
	for _, p := range peers {
		if p.name() == loopName {
			continue // The loop only starts services, so it never comes to rest.
		}
		if most := slices.Max(b.sizes(p)); n > most {
			b.addRemark("%s is left out of %s: it has room for %d services with a logger each", p.name(), measure, most)
			continue
		}
		if err := g.start(p, n, fast); err != nil {
			return g, err
		}
	}
	if err := g.each(func(i *instance) error { return i.awaitBoot() }); err != nil {
		return g, err
	}
	return g, g.each((*instance).awaitRest)
}

func (g *group) start(p peer, n int, fast bool) error {
	s, err := g.bench.newSite(n)
	if err != nil {
		return err
	}
	s.fast = fast
	i, err := g.bench.start(p, s)
	if err != nil {
		return g.bench.drop(p, g.measure, err)
	}
	g.instances = append(g.instances, i)
	return nil
}

// each calls do for each candidate in random order. It drops a failing candidate and adds a note;
// it returns an error if hinit fails.
func (g *group) each(do func(*instance) error) error {
	var kept []*instance
	g.instances = shuffled(g.instances)
	for k, i := range g.instances {
		err := do(i)
		if err == nil {
			kept = append(kept, i)
			continue
		}
		if err := g.bench.drop(i.peer, g.measure, i.withConsole(err)); err != nil {
			g.instances = append(kept, g.instances[k:]...)
			return err
		}
		i.kill()
	}
	g.instances = kept
	return nil
}

// drop adds a note that a candidate has failed. A failure of hinit or of the loop is an error.
func (b *bench) drop(p peer, measure string, err error) error {
	if p.name() == hinitName || p.name() == loopName || b.running.hasEnded() {
		return err
	}
	b.addRemark("%s has failed in %s", p.name(), measure)
	b.printError(fmt.Sprintf("%s is left out of %s: %v", p.name(), measure, err))
	return nil
}
