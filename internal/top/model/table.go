package model

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/samber/lo"

	"hinit/client"
	"hinit/internal/cmdline"
	"hinit/internal/control/show"
	"hinit/internal/procusage"
	"hinit/internal/top/frame"
)

// sortColumn is the column by which the table is sorted.
type sortColumn int

const (
	byTrouble sortColumn = iota // services in trouble first; services of the same grade in hinit's order
	byName
	byState
	bySince
	byRestarts
	byCPU
	byMemory
	byHost
	numSortColumns
)

var sortColumnNames = [numSortColumns]string{"trouble", "name", "state", "since", "restarts", "cpu", "memory", "host"}

// grade says how urgently a service needs attention. The constants are in the order of the table.
type grade int

const (
	gradeTrouble grade = iota
	gradeImpaired
	gradeUnknown // the host of the service does not answer
	gradeConfigChanged
	gradeChanging
	gradeHealthy
	gradeOff
	numGrades
)

// table is the list of services and groups, with the cursor.
type table struct {
	rows        []row
	cursorRow   rowID // row at the cursor; zero: the first row
	cursorIndex int   // index of the row at the cursor
	firstShown  int   // index of the first visible row
	sort        sortColumn
	reversed    bool
	grouping    grouping
	folded      map[string]bool
	filter      string
	marked      map[ID]bool
}

// row is a row of the table: a service, or the head of a group.
type row struct {
	service   Service
	isService bool // the row is a service
	group     string
	members   []Service
}

// rowID identifies a row, so that the cursor stays on it when the table changes.
type rowID struct {
	ID
	groupHead string
}

func (r row) rowID() rowID {
	if r.isService {
		return rowID{ID: r.service.ID()}
	}
	return rowID{groupHead: r.group + "\x00"}
}

// serviceAtCursor returns the service at the cursor. onService is false if the cursor is elsewhere.
func (m *Model) serviceAtCursor() (s Service, onService bool) {
	if r := m.table.cursorIndex; r >= 0 && r < len(m.table.rows) {
		return m.table.rows[r].service, m.table.rows[r].isService
	}
	return s, false
}

// gradeOf returns the grade of a service.
func (m *Model) gradeOf(s Service) grade {
	if _, _, silent := m.hostSilence(s.Host); silent {
		return gradeUnknown
	}
	verdict := show.VerdictOf(s.Service).Grade
	if verdict == show.GradeHealthy && s.Drifted {
		return gradeConfigChanged
	}
	return [...]grade{show.GradeFailed: gradeTrouble, show.GradeDegraded: gradeImpaired, show.GradeChanging: gradeChanging, show.GradeDown: gradeOff, show.GradeHealthy: gradeHealthy}[verdict]
}

// rebuildRows filters, sorts and groups the services again. The cursor stays on its row.
func (m *Model) rebuildRows() {
	t := &m.table
	words := strings.Fields(t.filter)
	services := slices.DeleteFunc(slices.Clone(m.services), func(s Service) bool { return !m.matchesFilter(s, words) })
	slices.SortStableFunc(services, func(a, b Service) int {
		n := m.compareServices(a, b)
		if t.reversed {
			return -n
		}
		return n
	})
	t.rows = t.rows[:0]
	if t.grouping != noGroups {
		m.appendGroups(services)
	} else {
		t.addRows(services)
	}
	// Without its row, the cursor stays at the same index, or goes to the last row.
	at := slices.IndexFunc(t.rows, func(r row) bool { return r.rowID() == t.cursorRow })
	switch {
	case t.cursorRow == (rowID{}):
		t.cursorIndex = 0
	case at >= 0:
		t.cursorIndex = at
	default:
		t.cursorIndex = min(max(t.cursorIndex, 0), max(len(t.rows)-1, 0))
	}
}

func (t *table) addRows(services []Service) {
	t.rows = append(t.rows, lo.Map(services, func(s Service, _ int) row { return row{service: s, isService: true} })...)
}

// moveCursor moves the cursor by a number of rows. A positive number moves it down.
func (m *Model) moveCursor(by int) { m.setCursor(m.table.cursorIndex + by) }

// setCursor puts the cursor on the row with this index, or on the nearest row.
func (m *Model) setCursor(index int) {
	t := &m.table
	if len(t.rows) == 0 {
		return
	}
	t.cursorIndex = min(max(index, 0), len(t.rows)-1)
	t.cursorRow = t.rows[t.cursorIndex].rowID()
	if m.pane.kind != eventPane { // the event pane shows all services, so its position is independent of the cursor
		m.pane.scrollOffset = 0
	}
}

// matchesFilter reports whether a service matches the filter. Each word must find the service, see [cmdline.MatchesSearch]. A
// word that begins with "!" excludes the services that the rest of the word finds.
func (m *Model) matchesFilter(s Service, words []string) bool {
	if len(words) == 0 {
		return true
	}
	text := strings.Join([]string{s.Name, s.Profile, s.Kind, stateWord(s.Service), s.State, lo.FromPtr(s.LastExit).Cause, show.ProblemNote(s.Service, m.now), s.Group, m.hosts[s.Host].name}, "\x00")
	for _, word := range words {
		word, negated := strings.CutPrefix(word, "!")
		if word != "" && cmdline.MatchesSearch(word, text, s.Service) == negated {
			return false
		}
	}
	return true
}

func (m *Model) compareServices(a, b Service) int {
	last := func(s Service) procusage.Usage { return lo.FromPtr(m.usage[s.ID()]).last }
	return [numSortColumns]func() int{
		byTrouble:  func() int { return cmp.Compare(m.gradeOf(a), m.gradeOf(b)) },
		byName:     func() int { return strings.Compare(a.Name, b.Name) },
		byState:    func() int { return strings.Compare(stateWord(a.Service), stateWord(b.Service)) },
		bySince:    func() int { return b.Since.Compare(a.Since) },
		byRestarts: func() int { return cmp.Compare(b.Restarts, a.Restarts) },
		byCPU:      func() int { return cmp.Compare(last(b).CPU, last(a).CPU) },
		byMemory:   func() int { return cmp.Compare(last(b).Memory, last(a).Memory) },
		byHost:     func() int { return cmp.Compare(a.Host, b.Host) },
	}[m.table.sort]()
}

// orderTargets returns the services to which an order applies: the marked services, in the order of the table. Without marks it
// is the service at the cursor, or each service of the group at the cursor.
func (m *Model) orderTargets() (ids []ID) {
	shown := lo.FilterMap(m.table.rows, func(r row, _ int) (Service, bool) { return r.service, r.isService })
	ids = lo.FilterMap(slices.Concat(shown, m.services), func(s Service, _ int) (ID, bool) { return s.ID(), m.table.marked[s.ID()] })
	if at := m.table.cursorIndex; len(ids) == 0 && at < len(m.table.rows) {
		r := m.table.rows[at]
		if r.isService {
			return []ID{r.service.ID()}
		}
		return lo.Map(r.members, func(s Service, _ int) ID { return s.ID() })
	}
	return lo.Uniq(ids)
}

// grouping is the property by which the table groups services.
type grouping int

const (
	noGroups grouping = iota
	byGroup           // group that hinit.yaml defines
	byProfile
	perHost
	numGroupings
)

var groupingNames = [numGroupings]string{"no groups", "grouped as in the configuration", "grouped by profile", "grouped by host"}

// groupOf returns the name of the group of a service. If the service has no group, it returns "".
func (m *Model) groupOf(s Service) string {
	return [numGroupings]string{byGroup: s.Group, byProfile: s.Profile, perHost: m.hosts[s.Host].name}[m.table.grouping]
}

// nextGrouping selects the next kind of grouping in which at least one service has a group.
func (m *Model) nextGrouping() {
	t := &m.table
	for t.grouping = (t.grouping + 1) % numGroupings; t.grouping != noGroups; t.grouping = (t.grouping + 1) % numGroupings {
		some := slices.ContainsFunc(m.services, func(s Service) bool { return m.groupOf(s) != "" })
		if some && (t.grouping != perHost || len(m.hosts) > 1) {
			break
		}
	}
	m.message = message{groupingNames[t.grouping], false}
	m.rebuildRows()
}

// appendGroups appends the rows of all groups to the table: the head of each group and, unless the group is folded, its services.
// Groups are in the order of their first services. Services without a group come last.
func (m *Model) appendGroups(services []Service) {
	t := &m.table
	groups := lo.GroupBy(services, m.groupOf)
	names := lo.Uniq(lo.Map(services, func(s Service, _ int) string { return m.groupOf(s) }))
	named, rest := lo.FilterReject(names, func(name string, _ int) bool { return name != "" })
	for _, name := range append(named, rest...) {
		t.rows = append(t.rows, row{group: name, members: groups[name]})
		if !t.folded[name] {
			t.addRows(groups[name])
		}
	}
}

// writeGroupHead writes the head of a group: its name, and how many services are up, in trouble or unknown.
func (m *Model) writeGroupHead(l *frame.Line, r row) {
	sign := lo.Ternary(m.table.folded[r.group], "▸ ", "▾ ")
	name := map[grouping]string{byGroup: "@", byProfile: "profile ", perHost: "host "}[m.table.grouping] + show.EscapeName(r.group)
	if r.group == "" {
		name = "of no " + map[grouping]string{byGroup: "group", byProfile: "profile"}[m.table.grouping]
	}
	up := lo.CountBy(r.members, func(s Service) bool { return s.State == client.StateUp })
	count := lo.CountValuesBy(r.members, m.gradeOf)
	l.Add(frame.Title, fmt.Sprintf("%s%s: %d of %d up", sign, name, up, len(r.members)))
	if bad := count[gradeTrouble] + count[gradeImpaired]; bad > 0 {
		l.Add(frame.Bad, fmt.Sprintf(", %d in trouble", bad))
	}
	if count[gradeUnknown] > 0 {
		l.Add(frame.Bad, fmt.Sprintf(", %d unknown", count[gradeUnknown]))
	}
}

// toggleFold hides or shows the services of the group at the cursor.
func (m *Model) toggleFold() {
	t := &m.table
	if t.grouping == noGroups || len(t.rows) == 0 {
		m.message = message{"there are no groups; p makes them", true}
		return
	}
	r := t.rows[t.cursorIndex]
	if r.isService {
		r.group = m.groupOf(r.service)
	}
	t.folded[r.group] = !t.folded[r.group]
	t.cursorRow = row{group: r.group}.rowID()
	m.rebuildRows()
}
