package model

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/samber/lo"

	"hinit/client"
	"hinit/internal/control/show"
	"hinit/internal/procusage"
	"hinit/internal/top/frame"
)

// maxMeasurements is the number of measurements of a service that are kept for its graphs.
const maxMeasurements = 60

// usageHistory has the measurements of a service, oldest first. If the last measurement has failed, known is false.
type usageHistory struct {
	last         procusage.Usage
	lastKnown    bool
	measurements []procusage.Usage
}

func (r *usageHistory) add(u procusage.Usage, known bool) {
	r.last, r.lastKnown = u, known
	r.measurements = append(r.measurements[max(len(r.measurements)-maxMeasurements+1, 0):], u)
}

// sparkline draws the last width measurements as a graph of one line. value returns the value to draw. A bar of full height
// stands for the largest value, or for least if that is larger.
func sparkline(seen []procusage.Usage, value func(u procusage.Usage) float64, width int, least float64) string {
	var values []float64
	for _, u := range seen[max(0, len(seen)-width):] {
		values, least = append(values, value(u)), max(least, value(u))
	}
	const bars = "▁▂▃▄▅▆▇█"
	var b strings.Builder
	b.WriteString(strings.Repeat(" ", width-len(values)))
	for _, v := range values {
		n := 0
		if least > 0 {
			n = min(int(v/least*8), 7)
		}
		b.WriteString(string([]rune(bars)[n]))
	}
	return b.String()
}

// stateWord describes the state of a service in one or two words.
func stateWord(s *client.Service) string {
	if word := show.VerdictOf(s).StateRemark; word != "" {
		return word
	}
	if s.State == client.StateDown && s.Want == client.WantUp && s.Expected {
		return "expected"
	}
	return s.State
}

// gradeMarks has the colour and the sign of each grade. The sign helps users who can't see the colours.
var gradeMarks = [numGrades]struct {
	sign string
	role frame.Role
}{
	gradeTrouble: {"✗", frame.Bad}, gradeImpaired: {"!", frame.Bad}, gradeUnknown: {"?", frame.Dim}, gradeConfigChanged: {"!", frame.Changing},
	gradeChanging: {"…", frame.Changing}, gradeHealthy: {"●", frame.Good}, gradeOff: {"·", frame.Dim},
}

// column is a column of the table.
type column struct {
	title      string
	width      int
	sort       sortColumn // column by which the table is sorted after a click on the title
	alignRight bool
	cell       func(m *Model, s Service, width int) (string, frame.Role)
}

const (
	minNoteWidth   = 8  // minimum width of the note; a narrower note is not shown
	shortNoteWidth = 20 // width that the five most useful optional columns must leave for the note
	longNoteWidth  = 40
	maxNameWidth   = 40 // maximum width of the name column
)

// shortName returns the profile of a gateway, and the name of any other service.
func shortName(s Service) string {
	if s.Kind == client.KindGateway && s.Profile != "" {
		return s.Profile
	}
	return s.Name
}

// columns returns the columns that fit on the screen, the more important first. The note gets the remaining width.
func (m *Model) columns() []column {
	longest, short := 4, 4
	for _, s := range m.services {
		longest = max(longest, frame.Width(s.Name))
		short = max(short, frame.Width(shortName(s)))
	}
	most := min(maxNameWidth, max(m.width/3, 8))
	named := func(s Service) string { return s.Name }
	if longest > most { // a name is too long: leave out the common prefix of gateways
		longest, named = short, shortName
	}
	name := column{"NAME", min(longest, most), byName, false, func(_ *Model, s Service, _ int) (string, frame.Role) {
		return show.EscapeName(named(s)), frame.Plain
	}}
	state := column{"STATE", 12, byState, false, func(m *Model, s Service, _ int) (string, frame.Role) {
		mark := gradeMarks[m.gradeOf(s)]
		return mark.sign + " " + stateWord(s.Service), mark.role
	}}
	note := column{"NOTE", 0, byTrouble, false, func(m *Model, s Service, _ int) (string, frame.Role) {
		return show.EscapeLine(show.ProblemNote(s.Service, m.now)), frame.Plain
	}}
	out := []column{name, state}
	if len(m.hosts) > 1 {
		out = append([]column{m.hostColumn()}, out...)
	}
	room := m.width - 2 - lo.SumBy(out, func(c column) int { return c.width + 1 }) // remaining width for the note, at the end of the line
	extras := optionalColumns()
	with := make([]bool, len(extras))
	for at, i := range []int{0, 3, 5, 2, 1, 4, 6, 7, 8} { // add the most useful columns first
		note := lo.Ternary(at >= 5, longNoteWidth, shortNoteWidth)
		if need := extras[i].width + 1; room-need >= note {
			with[i], room = true, room-need
		}
	}
	out = append(out, lo.Filter(extras, func(_ column, i int) bool { return with[i] })...)
	if room >= minNoteWidth {
		note.width = room
		out = append(out, note)
	}
	return out
}

// hostColumn returns the column that shows the host of each service.
func (m *Model) hostColumn() column {
	longest := len("HOST")
	for i := range m.hosts {
		longest = max(longest, frame.Width(show.EscapeName(m.hosts[i].name)))
	}
	return column{"HOST", min(longest, max(m.width/6, 4)), byHost, false, func(m *Model, s Service, _ int) (string, frame.Role) {
		return show.EscapeName(m.hosts[s.Host].name), frame.Dim
	}}
}

// optionalColumns returns the columns between the state and the note, which a narrow screen leaves out.
func optionalColumns() []column {
	const figures = 10
	used := func(text func(r *usageHistory, width int) string) func(*Model, Service, int) (string, frame.Role) {
		return func(m *Model, s Service, width int) (string, frame.Role) {
			r := m.usage[s.ID()]
			if r == nil || !r.lastKnown {
				return "-", frame.Dim
			}
			return text(r, width), frame.Plain
		}
	}
	drawn := func(value func(u procusage.Usage) float64, least float64) func(*Model, Service, int) (string, frame.Role) {
		return func(m *Model, s Service, width int) (string, frame.Role) {
			if r := m.usage[s.ID()]; r != nil {
				return sparkline(r.measurements, value, width, least), frame.Graph
			}
			return "", frame.Graph
		}
	}
	return []column{
		{"SINCE", 7, bySince, true, func(m *Model, s Service, _ int) (string, frame.Role) {
			return formatAge(m.now.Sub(s.Since)), frame.Plain
		}},
		{"RST", 4, byRestarts, true, func(_ *Model, s Service, _ int) (string, frame.Role) {
			return show.FormatNumber(s.Restarts), frame.Plain
		}},
		{"EXIT", 8, byTrouble, false, func(_ *Model, s Service, _ int) (string, frame.Role) {
			if s.LastExit == nil {
				return "-", frame.Dim
			}
			return show.EscapeLine(s.LastExit.Cause), frame.Plain
		}},
		{"CPU", 6, byCPU, true, used(func(r *usageHistory, _ int) string { return formatPercent(r.last.CPU) })},
		{"", figures, byCPU, false, drawn(func(u procusage.Usage) float64 { return u.CPU }, 0.02)},
		{"MEM", 6, byMemory, true, used(func(r *usageHistory, _ int) string { return formatSize(r.last.Memory) })},
		{"", figures, byMemory, false, drawn(func(u procusage.Usage) float64 { return float64(u.Memory) }, 1)},
		{"PROC", 4, byTrouble, true, used(func(r *usageHistory, _ int) string { return show.FormatNumber(r.last.Processes) })},
		{"PID", 7, byTrouble, true, func(_ *Model, s Service, _ int) (string, frame.Role) {
			return show.FormatNumber(s.PID), frame.Plain
		}},
	}
}

// formatAge formats a duration in whole seconds. Such a text changes less often, which saves bytes on a slow connection.
func formatAge(d time.Duration) string { return show.FormatDuration(d.Truncate(time.Second)) }

func formatPercent(cpu float64) string {
	if cpu >= 9.995 {
		return fmt.Sprintf("%.0f%%", cpu*100)
	}
	return fmt.Sprintf("%.1f%%", cpu*100)
}

// formatSize formats a number of bytes in at most five columns: 980K, 12.3M, 1.5G.
func formatSize(bytes uint64) string {
	n := float64(bytes)
	for _, unit := range []string{"B", "K", "M", "G"} {
		if n < 999.5 {
			if n < 99.95 && unit != "B" {
				return strconv.FormatFloat(n, 'f', 1, 64) + unit
			}
			return strconv.FormatFloat(n, 'f', 0, 64) + unit
		}
		n /= 1000
	}
	return strconv.FormatFloat(n, 'f', 1, 64) + "T"
}
