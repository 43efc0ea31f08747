package model

import (
	"fmt"

	"hinit/client"
	"hinit/internal/control/show"
	"hinit/internal/top/frame"
)

// grouping is the property by which services are grouped.
type grouping int

const (
	noGroups grouping = iota
	byGroup           // group in the configuration
	byProfile
	perHost
	groupings
)

var groupingNames = [groupings]string{"no groups", "grouped as in the configuration", "grouped by profile", "grouped by host"}

// groupOf returns the group of a service, or "".
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

// regroup selects the next grouping in which a service has a group.
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

// inGroups makes the rows of the groups, each after its head. The groups have the order of their first services. Services without a
// group come last.
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

// headOf writes the head of a group. If the group is folded, the head shows the troubles of its services.
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

// fold folds or unfolds the group at the cursor.
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
