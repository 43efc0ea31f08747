package show

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"hinit/client"
)

// Layout says how to show a status.
type Layout struct {
	NamesGiven bool // whether the user has named services; then names and errors are shown in full
	Width      int  // columns of the terminal, treated as at least 40; 0: no limit
	Colour     bool
	Verbose    bool // show how long the boot and its steps took
}

const minWidth = 40

// StatusTable returns the output of `hinit status`.
func StatusTable(st client.Status, layout Layout) []byte {
	if layout.Width > 0 {
		layout.Width = max(layout.Width, minWidth)
	}
	w := &wrappedText{layout: layout}
	w.writeInit(st.Init)
	if len(st.Services) == 0 {
		w.writeLine("no services")
		return w.Bytes()
	}
	rows := make([]tableRow, 0, len(st.Services)+1)
	rows = append(rows, tableRow{"NAME", "STATE", "SINCE", "PID", "RESTARTS", "MEMORY", "SERVED BY", "LAST EXIT", "NOTE"})
	grades := make([]HealthGrade, len(st.Services))
	for i := range st.Services {
		s := &st.Services[i]
		verdict := VerdictOf(s)
		grades[i] = verdict.Grade
		name, last, about := EscapeLine(s.Name), EscapeLine(lastExitCell(s)), EscapeLine(ProblemNote(s, time.Now()))
		if !layout.NamesGiven {
			name, last, about = shorten(name, maxNameWidth), shorten(last, maxCellWidth), shorten(about, maxCellWidth)
		}
		rows = append(rows, tableRow{
			name, stateCell(s, verdict), FormatDuration(time.Since(s.Since)), FormatNumber(s.PID), strconv.Itoa(s.Restarts), megabytes(s.MemoryBytes),
			cmp.Or(s.ServedBy, "-"), last, about,
		})
	}
	if !slices.ContainsFunc(st.Services, func(s client.Service) bool { return s.ServedBy != "" }) {
		dropColumn(rows, colServedBy)
	}
	below := w.fitWidth(rows)
	w.writeRows(rows, grades, below)
	if layout.NamesGiven {
		for i := range st.Services {
			s := &st.Services[i]
			for _, fact := range [][2]string{{s.Name + " says", s.StatusText}, {"isolation of " + s.Name, IsolationText(s)}, {"limits of " + s.Name, LimitsText(s)}} {
				if fact[1] != "" {
					w.writeLine(EscapeLine(fact[0] + ": " + fact[1]))
				}
			}
			writeList(w, "checks of "+s.Name, s.Checks, func(c *client.Check) string { return c.Name + " " + CheckText(c) })
			writeList(w, "settings of "+s.Name, s.Settings, SettingText)
		}
	}
	return w.Bytes()
}

// lastExitCell describes the last exit for the table, without an error that the service's note repeats.
func lastExitCell(s *client.Service) string {
	if x := s.LastExit; x != nil && x.Cause == "spawn" && x.Error != "" && strings.Contains(ProblemNote(s, time.Now()), x.Error) {
		return "not started, " + FormatDuration(time.Since(x.EndedAt)) + " ago"
	}
	return LastExitText(s.LastExit)
}

type wrappedText struct {
	bytes.Buffer
	layout Layout
}

// writeLine writes a line, wrapped at the width of the terminal.
func (w *wrappedText) writeLine(text string) { w.writeWrapped("", text) }

// writeWrapped writes a line with indent before it, wrapped at the width of the terminal. Further lines have two more blanks.
func (w *wrappedText) writeWrapped(indent, text string) {
	room := w.layout.Width - len(indent)
	if w.layout.Width == 0 || textColumns(text) <= room {
		w.WriteString(indent + text + "\n")
		return
	}
	for first := true; text != ""; first = false {
		if !first {
			w.WriteString("  ")
		}
		n, used := 0, 0
		space := 0 // position of the last blank, where the line may be broken
		for i, r := range text {
			used += runeColumns(r)
			if used > room {
				break
			}
			if r == ' ' {
				space = i
			}
			n = i + utf8.RuneLen(r)
		}
		if n < len(text) && space > 0 {
			n = space
		}
		w.WriteString(indent + text[:n] + "\n")
		text = strings.TrimPrefix(text[n:], " ")
		if first {
			room -= 2
		}
	}
}

// writeInit writes the lines about hinit itself, above the table.
func (w *wrappedText) writeInit(in client.Init) {
	where := "home " + EscapeLine(in.Home)
	if in.ServicesFile != "" {
		where = "services of " + EscapeLine(in.ServicesFile)
	}
	text := fmt.Sprintf("hinit %s, pid %d, up %s, %s", in.Version, in.PID, FormatSeconds(in.UptimeSeconds), where)
	if in.Subreaper {
		text += ", as a subreaper"
	}
	if in.Stopping {
		text += ", STOPPING"
	}
	w.writeLine(text)
	if in.Booting && in.BootProfiles == nil {
		w.writeLine("booting" + HookText(in.Hook))
	}
	if in.Cmd != nil {
		text := fmt.Sprintf("CMD: %s (pid %d)", EscapeLine(strings.Join(in.Cmd.Argv, " ")), in.Cmd.PID)
		if in.Cmd.Stopped {
			text += fmt.Sprintf(", stopped by a signal such as Ctrl-Z; resume it with: kill -CONT %d", in.Cmd.PID)
		}
		w.writeLine(text)
	}
	if len(in.Boot) > 0 && w.layout.Verbose {
		w.writeLine("boot: " + EscapeLine(BootTimeline(in.Boot)))
	}
	if b := in.BootProfiles; b != nil {
		w.writeLine(fmt.Sprintf("booting: profiles %s of %s", FormatThousands(b.Done), FormatThousands(b.Profiles)))
	}
	if l := in.Lease; l != nil && l.State == client.LeaseWaiting {
		w.writeLine(fmt.Sprintf("waiting since %s: %s; until then this container serves nothing", l.Since.UTC().Format(time.RFC3339), EscapeLine(l.Detail)))
	}
	if r := in.Repair; r != nil && !r.Done {
		w.writeLine(fmt.Sprintf("repairing file ownership: %d files looked at, %d changed, now in %s", r.Examined, r.Changed, EscapeLine(r.Directory)))
	}
	if in.FirstOOMVictim != "" {
		w.writeLine("when memory runs out the kernel takes first: " + EscapeName(in.FirstOOMVictim))
	}
	for _, warning := range in.Warnings {
		w.writeLine("warning: " + EscapeLine(warning))
	}
}

type tableRow [9]string

// The columns of the table, from left to right.
const (
	colName = iota
	colState
	colSince
	colPID
	colRestarts
	colMemory
	colServedBy
	colLastExit
	colNote
)

// columnGap is the number of blanks between two columns.
const columnGap = 2

// fitWidth makes the table fit the width of the terminal: it drops less important columns and shortens long cells. If the user
// has named services, it moves the last exit and the note out of the table. below has the lines to print under each row.
func (w *wrappedText) fitWidth(rows []tableRow) (below [][]string) {
	if w.layout.Width == 0 {
		return nil
	}
	if w.layout.NamesGiven && tableWidth(rows) > w.layout.Width {
		below = make([][]string, len(rows))
		for i := range rows {
			if i > 0 && rows[i][colLastExit] != "-" {
				below[i] = append(below[i], "last exit: "+rows[i][colLastExit])
			}
			if i > 0 && rows[i][colNote] != "" {
				below[i] = append(below[i], rows[i][colNote])
			}
		}
		dropColumn(rows, colLastExit)
		dropColumn(rows, colNote)
	}
	shrinkColumn(rows, w.layout.Width, colNote, 24)
	shrinkColumn(rows, w.layout.Width, colLastExit, 16)
	for _, column := range []int{colRestarts, colMemory, colPID, colLastExit, colSince, colServedBy} {
		if tableWidth(rows) <= w.layout.Width {
			break
		}
		dropColumn(rows, column)
	}
	shrinkColumn(rows, w.layout.Width, colNote, 10)
	shrinkColumn(rows, w.layout.Width, colName, 16)
	if tableWidth(rows) > w.layout.Width {
		dropColumn(rows, colNote)
	}
	shrinkColumn(rows, w.layout.Width, colName, 12)
	return below
}

func shrinkColumn(rows []tableRow, width, column, least int) {
	over := tableWidth(rows) - width
	if over <= 0 {
		return
	}
	most := max(columnWidths(rows)[column]-columnGap-over, least)
	for i := range rows {
		rows[i][column] = shorten(rows[i][column], most)
	}
}

func dropColumn(rows []tableRow, column int) {
	for i := range rows {
		rows[i][column] = ""
	}
}

func columnWidths(rows []tableRow) (width [len(tableRow{})]int) {
	for i := range rows {
		for j, cell := range rows[i] {
			if cell != "" {
				width[j] = max(width[j], textColumns(cell)+columnGap)
			}
		}
	}
	return width
}

func tableWidth(rows []tableRow) int {
	width, most := columnWidths(rows), 0
	for i := range rows {
		n := 0
		for j, cell := range rows[i] {
			if cell != "" {
				most = max(most, n+textColumns(cell))
			}
			n += width[j]
		}
	}
	return most
}

// writeRows writes the table. Below row i it writes the lines below[i], indented. No line ends with blanks.
func (w *wrappedText) writeRows(rows []tableRow, grades []HealthGrade, below [][]string) {
	width := columnWidths(rows)
	for i := range rows {
		pad := 0
		for j, cell := range rows[i] {
			if cell == "" {
				pad += width[j]
				continue
			}
			w.WriteString(strings.Repeat(" ", pad))
			pad = width[j] - textColumns(cell)
			if w.layout.Colour && j == colState && i > 0 && gradeColours[grades[i-1]] != "" {
				cell = gradeColours[grades[i-1]] + cell + "\x1b[0m"
			}
			w.WriteString(cell)
		}
		w.WriteByte('\n')
		if below != nil {
			for _, text := range below[i] {
				w.writeWrapped("    ", text)
			}
		}
	}
}

// gradeColours has the escape sequence for each grade: green means that the service works, yellow that its state changes, red
// that it needs attention.
var gradeColours = [...]string{GradeHealthy: "\x1b[32m", GradeDown: "", GradeChanging: "\x1b[33m", GradeDegraded: "\x1b[31m", GradeFailed: "\x1b[31m"}

func stateCell(s *client.Service, v ServiceVerdict) string {
	if v.StateRemark == "" {
		return s.State
	}
	return s.State + " (" + v.StateRemark + ")"
}

// ProblemNote describes the problem of a service and its next step. The text is not escaped.
func ProblemNote(s *client.Service, now time.Time) string {
	next := nextStep(s, now)
	if strings.Contains(s.Problem, next) {
		return s.Problem
	}
	return strings.TrimSuffix(next+"; "+s.Problem, "; ")
}

// nextStep describes the next step of a service, or why it stays in its state.
func nextStep(s *client.Service, now time.Time) string {
	if s.Drifted {
		return "drifted: restart to apply"
	}
	if s.Paused && s.PID != 0 {
		return fmt.Sprintf("resume it with: kill -CONT %d", s.PID)
	}
	switch s.State {
	case client.StateBackoff:
		if s.NextStart != nil {
			return "next start in " + FormatDuration(max(s.NextStart.Sub(now), 0))
		}
	case client.StateWaiting:
		if strings.HasPrefix(s.Reason, "waits for ") {
			return s.Reason
		}
		return "waits for " + strings.Join(s.Needs, ", ")
	case client.StateParked, client.StateFailed, client.StateStopping, client.StateKilling, client.StateFinishing:
		return s.Reason + NextRun("; next run in ", s, now)
	case client.StateDown:
		switch {
		case s.Want == client.WantUp:
			return s.Reason
		case s.Done && s.Task:
			return "done" + NextRun("; next run in ", s, now)
		}
		return NextRun("next run in ", s, now)
	}
	return ""
}

// NextRun returns prefix and the time from now until the next scheduled run of a service, or "" for a service without a schedule.
func NextRun(prefix string, s *client.Service, now time.Time) string {
	if s.NextRun == nil {
		return ""
	}
	return prefix + FormatDuration(max(s.NextRun.Sub(now), 0))
}

func megabytes(bytes uint64) string {
	if bytes == 0 {
		return "-"
	}
	return strconv.FormatFloat(float64(bytes)/1e6, 'f', 1, 64) + " MB"
}
