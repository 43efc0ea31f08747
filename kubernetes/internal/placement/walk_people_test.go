package placement

import (
	"fmt"
	"maps"
	"slices"
)

// scale creates or ends hosts, as the plan demands. Their volumes stay. A controller removes a host
// only after a fresh read.
func (m *model) scale(plan Plan) {
	for _, name := range names {
		o, last := m.current(name), fmt.Sprintf("pool-%d", m.pool.Replicas-1)
		if m.broken == "" && plan.Replicas < m.pool.Replicas && (o.Owner == last || o.MoveTarget == last) {
			return
		}
	}
	m.pool.Replicas, m.pool.Leaving = plan.Replicas, plan.Leaving
	for i, n := range m.nodes[:maxHosts] {
		switch wanted := i < plan.Replicas; {
		case wanted && !n.exists:
			n.exists = true
			n.boot(m)
		case !wanted && n.exists:
			n.exists = false
			n.crash()
			m.removed++
			for _, name := range names {
				if n.volumeOf(name).live >= 0 && m.current(name).Owner == n.name {
					m.fail("%s goes with the data of %s", n.name, name)
				}
			}
		}
	}
}

// destroy ends a host and deletes its volume.
func (m *model) destroy(n *node) {
	n.crash()
	for _, name := range names {
		m.destroyed[name] = m.destroyed[name] || m.newest[name] >= 0 && m.has(n.name, name)
	}
	n.disk = map[string]*volume{}
	for _, name := range names {
		n.volumeOf(name).lost = true
	}
}

// has reports whether the newest data of a profile is on the volume of a host, or of any host.
func (m *model) has(host, name string) bool {
	return slices.ContainsFunc(m.nodes, func(n *node) bool {
		v := n.volumeOf(name)
		return (host == "" || n.name == host) && slices.Contains(append(slices.Collect(maps.Values(v.aside)), v.live, v.incoming), m.newest[name])
	})
}

// recreateHome simulates a leftover process that creates the profile's home again, without data. The
// host can distinguish it from the profile's home only after it has reported the data as lost, see
// ADR 0108.
func (m *model) recreateHome(n *node, name string) {
	if v := n.volumeOf(name); v.live < 0 && !v.lost {
		v.stray = true
		m.strays++
	}
}

// actAsUsers simulates users: they give up lost data, and sometimes withdraw that. At the end, they
// remove homes that a host must not touch.
func (m *model) actAsUsers(name string) {
	o := m.current(name)
	for _, n := range m.nodes {
		v := n.volumeOf(name)
		if _, current := v.aside[o.Assignment]; !m.faults && !current {
			v.stray = false
		}
	}
	gone := o.Installed != 0 && (o.lost == HostLost || o.missing) && !m.has(o.Owner, name)
	switch {
	case o.recover != "" && (gone && o.recover == o.recovered || m.rnd.IntN(8) == 0):
		o.recover = ""
	case o.recover == "" && o.recovered == "" && gone:
		o.recover = o.Owner
	default:
		return
	}
	o.version++
	m.versions[name] = append(m.versions[name], o)
}

// giveUp gives up the data of a profile, and checks that its volume is lost.
func (m *model) giveUp(read object, a GiveUp) {
	m.write(read, a.Profile, func(o *object) {
		if m.has(o.Owner, a.Profile) {
			m.fail("the data of %s on %s is thrown away", a.Profile, o.Owner)
		}
		o.Owner, o.Installed, o.Missing, o.Receipt, o.MoveTarget, o.Offer, o.Received, o.Failed = "", 0, false, "", "", "", "", false
		o.Assignment++
		o.lost, o.here, o.missing, o.recovered = "", false, false, o.recover
		m.destroyed[a.Profile], m.givenUp[a.Profile] = true, true
		m.recoveries++
	})
}
