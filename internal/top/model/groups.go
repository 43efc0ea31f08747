package model

import (
	"fmt"

	"hinit/client"
	"hinit/internal/control/show"
	"hinit/internal/top/frame"
)

// grouping says by what services stand together.
type grouping int

const (
	noGroups grouping = iota
	byGroup           // of the configuration
	byProfile
	perHost
	groupings
)

var groupingNames = [groupings]string{"no groups", "grouped as in the configuration", "grouped by profile", "grouped by host"}

// groupOf is the group of a service, "" for none.
func (m *Model) groupOf(s Service) string {
	switch m.table.groups {
	case byGroup:
		return s.Group
	case byProfile:
		return s.Profile
	case perHost:
		return m.hosts[s.Host].name
	case noGroups, groupings:
	}
	return ""
}

// regroup takes the next grouping that has anything to show.
func (m *Model) regroup() {
	t := &m.table
	for t.groups = (t.groups + 1) % groupings; t.groups != noGroups; t.groups = (t.groups + 1) % groupings {
		first := ""
		for _, s := range m.services {
			first = max(first, m.groupOf(s))
		}
		if first != "" && (t.groups != perHost || len(m.hosts) > 1) {
			break
		}
	}
	m.message = message{groupingNames[t.groups], false}
	m.arrange()
}

// inGroups makes the rows of groups: each below its head, in the order of the first service of each. Services of none come last.
func (m *Model) inGroups(services []Service) {
	t := &m.table
	var names []string
	groups := make(map[string][]Service)
	for _, s := range services {
		name := m.groupOf(s)
		if groups[name] == nil && name != "" {
			names = append(names, name)
		}
		groups[name] = append(groups[name], s)
	}
	if groups[""] != nil {
		names = append(names, "")
	}
	for _, name := range names {
		t.rows = append(t.rows, row{group: name, members: groups[name]})
		if !t.folded[name] {
			t.add(groups[name])
		}
	}
}

// headOf writes the head of a group. It tells the troubles, which its services do not where it is folded.
func (m *Model) headOf(l *frame.Line, r row) {
	sign := "▾ "
	if m.table.folded[r.group] {
		sign = "▸ "
	}
	name := map[grouping]string{byGroup: "@", byProfile: "profile ", perHost: "host "}[m.table.groups] + show.Name(r.group)
	if r.group == "" {
		name = "of no " + map[grouping]string{byGroup: "group", byProfile: "profile"}[m.table.groups]
	}
	up := 0
	var count [grades]int
	for _, s := range r.members {
		if s.State == client.StateUp {
			up++
		}
		count[m.trouble(s)]++
	}
	l.Add(frame.Title, fmt.Sprintf("%s%s: %d of %d up", sign, name, up, len(r.members)))
	if bad := count[inTrouble] + count[ailing]; bad > 0 {
		l.Add(frame.Bad, fmt.Sprintf(", %d in trouble", bad))
	}
	if count[unknown] > 0 {
		l.Add(frame.Bad, fmt.Sprintf(", %d unknown", count[unknown]))
	}
}

// fold folds the group of the row with the cursor, or shows its services again.
func (m *Model) fold() {
	t := &m.table
	if t.groups == noGroups || len(t.rows) == 0 {
		m.message = message{"there are no groups; p makes them", true}
		return
	}
	r := t.rows[t.index]
	if r.is {
		r.group = m.groupOf(r.service)
	}
	t.folded[r.group] = !t.folded[r.group]
	t.at = row{group: r.group}.place()
	m.arrange()
}
