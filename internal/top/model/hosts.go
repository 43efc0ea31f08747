package model

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/samber/lo"

	"hinit/client"
	"hinit/internal/control/show"
	"hinit/internal/procusage"
	"hinit/internal/top/frame"
)

// host is the state of an init whose services the screen shows.
type host struct {
	name   string
	status client.Status
	heard  time.Time // when the last line of the status arrived; zero before the first one
	lost   time.Time // when the host stopped answering; zero while it answers
	why    string
}

// Change applies a status change of a host, which is one line of the host's status stream.
func (m *Model) Change(of int, c client.StatusChange, now time.Time) {
	m.now = now
	h := &m.hosts[of]
	c.Apply(&h.status)
	h.heard, h.lost, h.why = now, time.Time{}, ""
	m.services = m.services[:0]
	for i := range m.hosts {
		for j := range m.hosts[i].status.Services {
			m.services = append(m.services, Service{&m.hosts[i].status.Services[j], i})
		}
	}
	if c.Whole { // services may have been removed
		there := lo.KeyBy(m.services, Service.ID)
		maps.DeleteFunc(m.usage, func(id ID, _ *usageHistory) bool { return !lo.HasKey(there, id) })
		maps.DeleteFunc(m.table.marks, func(id ID, _ bool) bool { return !lo.HasKey(there, id) })
	}
	m.rebuildRows()
}

// Lost records that a host does not answer, and why.
func (m *Model) Lost(of int, why string, now time.Time) {
	m.now = now
	h := &m.hosts[of]
	if h.lost.IsZero() {
		h.lost = now
	}
	h.why = why
}

// SetUsage records the measured usage of a host's services, by service name. usage is nil if the host's processes are not visible
// here.
func (m *Model) SetUsage(of int, usage map[string]procusage.Usage, now time.Time) {
	m.now = now
	for _, s := range m.services {
		if s.Host != of {
			continue
		}
		u, is := usage[s.Name]
		r := m.usage[s.ID()]
		if r == nil && !is {
			continue
		}
		r = cmp.Or(r, new(usageHistory))
		r.add(u, is)
		m.usage[s.ID()] = r
	}
	if m.table.sort == byCPU || m.table.sort == byMemory {
		m.rebuildRows()
	}
}

// silent reports whether a host is not answering. since is the start of the silence, and why is the error, or "" if it is
// unknown.
func (m *Model) silent(of int) (since time.Time, why string, is bool) {
	switch h := &m.hosts[of]; {
	case !h.lost.IsZero():
		return h.lost, h.why, true
	case !h.heard.IsZero() && m.now.Sub(h.heard) > Silence:
		return h.heard, "", true
	}
	return time.Time{}, "", false
}

// anyAnswered reports whether any host has answered yet.
func (m *Model) anyAnswered() bool {
	return slices.ContainsFunc(m.hosts, func(h host) bool { return !h.heard.IsZero() })
}

// label returns the name of a service for the screen. With several hosts, the name of the host precedes it.
func (m *Model) label(id ID) string {
	if len(m.hosts) > 1 {
		return show.Name(m.hosts[id.Host].name) + ":" + show.Name(id.Name)
	}
	return show.Name(id.Name)
}

// hostLine returns a line about the state of a host, and whether the host needs one. It needs one if it does not answer, stops,
// boots, waits for its lease or has a warning.
func (m *Model) hostLine(of int) (l frame.Line, is bool) {
	h := &m.hosts[of]
	if len(m.hosts) > 1 {
		l.Add(frame.Title, show.Name(h.name)+": ")
	}
	in := &h.status.Init
	since, why, silent := m.silent(of)
	switch {
	case silent:
		text := fmt.Sprintf("not answering since %s (%s)", since.Local().Format("15:04:05"), age(m.now.Sub(since)))
		if why != "" {
			text += ": " + show.Line(oneLine(why))
		}
		l.Add(frame.Bad, text)
	case in.Stopping:
		l.Add(frame.Bad, "the container is stopping")
	case in.Booting:
		l.Add(frame.Doing, "booting"+show.Hook(in.Hook))
	case in.Lease != nil && in.Lease.State == client.LeaseWaiting:
		l.Add(frame.Doing, show.Line(in.Lease.Detail))
	case len(in.Warnings) > 0 && m.height >= 20:
		more := ""
		if n := len(in.Warnings); n > 1 {
			more = fmt.Sprintf(" (and %d more: hinit status)", n-1)
		}
		l.Add(frame.Doing, "warning"+more+": "+show.Line(in.Warnings[0]))
	default:
		return l, false
	}
	return l, true
}

// hostLines returns the first lines of the screen: a summary, and the lines of the hosts. Silent hosts come first, because a
// short terminal does not show all lines.
func (m *Model) hostLines() (out []frame.Line) {
	var head frame.Line
	head.Add(frame.Title, "hinit top ")
	if m.anyAnswered() {
		m.summary(&head)
	} else {
		head.Add(frame.Dim, "asking hinit for its status")
	}
	out = append(out, head)
	most := max(m.height/4, 1)
	for _, wanted := range []bool{true, false} {
		for i := range m.hosts {
			if _, _, silent := m.silent(i); silent != wanted || len(out) > most {
				continue
			}
			if l, is := m.hostLine(i); is {
				out = append(out, l)
			}
		}
	}
	return out
}

// summary adds to l the number of services in each grade, and their total usage. Services in trouble come first, because even the
// narrowest screen must show them.
func (m *Model) summary(l *frame.Line) {
	var count [grades]int
	var all procusage.Usage
	measured := false
	for _, s := range m.services {
		count[m.gradeOf(s)]++
		if r := m.usage[s.ID()]; r != nil && r.known {
			measured = true
			all.CPU += r.last.CPU
			all.Memory += r.last.Memory
			all.Processes += r.last.Processes
		}
	}
	add := func(role frame.Role, count int, word string) {
		if count > 0 {
			l.Add(role, fmt.Sprintf("%d %s ", count, word))
		}
	}
	add(frame.Bad, count[inTrouble], "in trouble")
	add(frame.Bad, count[ailing], "ailing")
	add(frame.Bad, count[unknown], "unknown")
	add(frame.Doing, count[drifted], "drifted")
	add(frame.Doing, count[coming], "on the way")
	l.Add(frame.Good, fmt.Sprintf("%d of %d well ", count[well]+count[drifted], len(m.services)))
	add(frame.Dim, count[off], "down")
	if measured {
		l.Add(frame.Plain, fmt.Sprintf("cpu %s mem %s proc %d ", percent(all.CPU), size(all.Memory), all.Processes))
	}
	if len(m.hosts) > 1 {
		l.Add(frame.Dim, fmt.Sprintf("%d hosts", len(m.hosts)))
		return
	}
	in := &m.hosts[0].status.Init
	l.Add(frame.Dim, "up "+age(m.now.Sub(in.StartedAt))+" "+show.Line(in.Home))
}
