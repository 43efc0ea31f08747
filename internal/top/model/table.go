package model

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"hinit/client"
	"hinit/internal/control/show"
)

// order is a column to sort by.
type order int

const (
	byTrouble order = iota // what needs somebody comes first; else hinit's own order
	byName
	byState
	bySince
	byRestarts
	byCPU
	byMemory
	orders
)

var orderNames = [orders]string{"trouble", "name", "state", "since", "restarts", "cpu", "memory"}

// table is the list of services and where one is in it.
type table struct {
	rows     []row
	at       string // service with the cursor, "" for the first
	index    int    // of its row
	top      int    // first row on the screen
	sort     order
	reversed bool
	grouped  bool
	filter   string
	marks    map[string]bool
}

// row is a service, or the head of a group when service is negative.
type row struct {
	service int
	profile string
	up, all int
}

// current is the service with the cursor, nil when none is shown.
func (m *Model) current() *client.Service {
	if r := m.table.index; r >= 0 && r < len(m.table.rows) && m.table.rows[r].service >= 0 {
		return &m.status.Services[m.table.rows[r].service]
	}
	return nil
}

// trouble says how much a service needs somebody: 0 most.
func trouble(s *client.Service) int {
	switch show.Judge(s).Grade {
	case show.Trouble:
		return 0
	case show.Ailing:
		return 1
	case show.Coming:
		return 3
	case show.Off:
		return 5
	case show.Well:
	}
	if s.Drifted {
		return 2
	}
	return 4
}

// arrange makes the rows anew: what the filter lets through, sorted, in groups. The cursor stays with its service.
func (m *Model) arrange() {
	t := &m.table
	services := m.status.Services
	t.rows = t.rows[:0]
	words := strings.Fields(strings.ToLower(t.filter))
	for i := range services {
		if m.passes(&services[i], words) {
			t.rows = append(t.rows, row{service: i})
		}
	}
	slices.SortStableFunc(t.rows, func(a, b row) int {
		n := m.compare(&services[a.service], &services[b.service])
		if t.reversed {
			return -n
		}
		return n
	})
	if t.grouped {
		t.rows = m.inGroups(t.rows)
	}
	m.find()
}

// find puts the cursor on its service, or on the next best row.
func (m *Model) find() {
	t := &m.table
	if t.at != "" {
		for i, r := range t.rows {
			if r.service >= 0 && m.status.Services[r.service].Name == t.at {
				t.index = i
				return
			}
		}
	} else {
		t.index = 0
	}
	t.index = min(max(t.index, 0), max(len(t.rows)-1, 0))
	if t.index < len(t.rows) && t.rows[t.index].service < 0 {
		t.index++ // a group has at least one service
	}
}

// move moves the cursor by rows, over the heads of groups.
func (m *Model) move(by int) {
	t := &m.table
	step := 1
	if by < 0 {
		step, by = -1, -by
	}
	for i := t.index + step; i >= 0 && i < len(t.rows) && by > 0; i += step {
		if t.rows[i].service >= 0 {
			t.index = i
			by--
		}
	}
	if s := m.current(); s != nil {
		t.at = s.Name
	}
	m.pane.moved()
}

// passes reports whether a service has all the words of a filter; one that begins with ! it must not have.
func (m *Model) passes(s *client.Service, words []string) bool {
	if len(words) == 0 {
		return true
	}
	cause := ""
	if s.LastExit != nil {
		cause = s.LastExit.Cause
	}
	text := strings.ToLower(strings.Join([]string{s.Name, s.Profile, s.Kind, stateWord(s), s.State, cause, show.Note(s, m.now)}, "\x00"))
	for _, word := range words {
		not, negated := strings.CutPrefix(word, "!")
		if negated && not != "" && strings.Contains(text, not) || !negated && !strings.Contains(text, word) {
			return false
		}
	}
	return true
}

func (m *Model) compare(a, b *client.Service) int {
	last := func(s *client.Service) Usage {
		if r := m.usage[s.Name]; r != nil {
			return r.last
		}
		return Usage{}
	}
	switch m.table.sort {
	case byTrouble:
		return cmp.Compare(trouble(a), trouble(b))
	case byName:
		return strings.Compare(a.Name, b.Name)
	case byState:
		return strings.Compare(stateWord(a), stateWord(b))
	case bySince:
		return b.Since.Compare(a.Since)
	case byRestarts:
		return cmp.Compare(b.Restarts, a.Restarts)
	case byCPU:
		return cmp.Compare(last(b).CPU, last(a).CPU)
	case byMemory:
		return cmp.Compare(last(b).Memory, last(a).Memory)
	case orders:
	}
	return 0
}

// inGroups puts rows of a profile together, below a head, in the order of the first of each.
func (m *Model) inGroups(rows []row) []row {
	var names []string
	groups := make(map[string][]row)
	for _, r := range rows {
		name := m.status.Services[r.service].Profile
		if groups[name] == nil {
			names = append(names, name)
		}
		groups[name] = append(groups[name], r)
	}
	out := make([]row, 0, len(rows)+len(names))
	for _, name := range names {
		head := row{service: -1, profile: name, all: len(groups[name])}
		for _, r := range groups[name] {
			if m.status.Services[r.service].State == client.StateUp {
				head.up++
			}
		}
		out = append(append(out, head), groups[name]...)
	}
	return out
}

func (r row) title() string {
	name := "profile " + label(r.profile)
	if r.profile == "" {
		name = "of no profile"
	}
	return fmt.Sprintf("%s: %d of %d up", name, r.up, r.all)
}

// chosen are the marked services in the order of the table, or the one with the cursor.
func (m *Model) chosen() (names []string) {
	shown := make(map[string]bool)
	for _, r := range m.table.rows {
		if r.service >= 0 && m.table.marks[m.status.Services[r.service].Name] {
			names = append(names, m.status.Services[r.service].Name)
			shown[names[len(names)-1]] = true
		}
	}
	for i := range m.status.Services { // marked, and not let through by the filter
		if name := m.status.Services[i].Name; m.table.marks[name] && !shown[name] {
			names = append(names, name)
		}
	}
	if s := m.current(); len(names) == 0 && s != nil {
		return []string{s.Name}
	}
	return names
}

// label is a name as the screen shows it.
func label(name string) string { return show.Name(name) }
