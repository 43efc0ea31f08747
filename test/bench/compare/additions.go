package main

import "time"

// stagingTime is how long a definition exists before it is used, so that a watching candidate has
// seen it.
const stagingTime = 100 * time.Millisecond

// measureAdditions measures M9: the time from the command that adds a service until the service runs, while other services run.
func (b *bench) measureAdditions() error {
	n := 100
	if b.quick {
		n = 10
	}
	g, err := startCandidates(b, "M9", candidatesOf[runtimeAdder](b), n, false)
	defer g.kill()
	if err != nil {
		return err
	}
	for range b.runs + 2 {
		if err := g.each(func(i *instance) error { return b.addTo(i) }); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) addTo(i *instance) error {
	p, ok := i.peer.(runtimeAdder)
	if !ok {
		return nil
	}
	for _, way := range p.adders() {
		service := serviceName(len(i.services) + i.more)
		i.more++
		if way.stage != nil {
			if err := way.stage(i.site, service); err != nil {
				return err
			}
			<-time.After(stagingTime)
		}
		begin := time.Now()
		if err := way.add(i.site, service); err != nil {
			return err
		}
		at, err := i.watch.wait(1, i)
		if err != nil {
			return err
		}
		b.figures.add("M9", way.name, i.peer.name(), ms(at.Sub(begin)))
	}
	return nil
}
