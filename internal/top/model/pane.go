package model

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/samber/lo"

	"hinit/client"
	"hinit/internal/control/show"
	"hinit/internal/loglevel"
	"hinit/internal/top/frame"
)

// Limits of what a pane keeps.
const (
	maxLines  = 2000
	maxEvents = 500
)

// LogLine is a line of a log, not escaped.
type LogLine struct {
	At   time.Time // time of the line; zero if it has none
	Text string

	level loglevel.Level
}

// hostEvent is an event with the index of its host.
type hostEvent struct {
	client.Event
	host int
}

// pane is the lower part of the screen, with the data of all its views.
type pane struct {
	kind         paneKind
	focused      bool
	zoomed       bool
	scrollOffset int // number of lines from the end (log, events) or from the beginning (details)
	search       string
	showsLastRun bool           // show the log of the last ended run
	minLevel     loglevel.Level // minimum level of the shown lines; 0: all lines
	shownLog     Log            // log that the lines come from
	lines        []LogLine
	levels       loglevel.Tracker
	events       []hostEvent
	details      ProcessDetails
}

// AddEvent adds an event of a host to the event pane.
func (m *Model) AddEvent(host int, e client.Event) {
	p := &m.pane
	p.events = append(p.events, hostEvent{e, host})
	if over := len(p.events) - maxEvents; over > 0 {
		p.events = append(p.events[:0], p.events[over:]...)
	}
	if p.kind == eventPane && p.scrollOffset > 0 {
		p.scrollOffset++
	}
}

// AddLogLines appends lines of a log, not escaped and without line ends. A nil lines means that the caller reads the log again
// from its beginning, and drops the earlier lines.
func (m *Model) AddLogLines(of Log, lines []LogLine) {
	p := &m.pane
	if p.shownLog != of || len(lines) == 0 { // another log, or the beginning of the same log
		p.shownLog, p.lines, p.levels = of, nil, loglevel.Tracker{}
	}
	shown := 0
	for _, l := range lines {
		l.level = p.levels.OfNextLine([]byte(l.Text))
		p.lines = append(p.lines, l)
		if l.level >= p.minLevel {
			shown++
		}
	}
	if over := len(p.lines) - maxLines; over > 0 {
		p.lines = append(p.lines[:0], p.lines[over:]...)
	}
	if p.kind == logPane && p.scrollOffset > 0 {
		p.scrollOffset = min(p.scrollOffset+shown, len(p.lines))
	}
}

// toggleLastRun switches the log pane between the newest lines and the log of the last ended run.
func (m *Model) toggleLastRun() {
	s, is := m.serviceAtCursor()
	switch {
	case !is:
	case m.pane.kind == logPane && m.pane.showsLastRun:
		m.pane.showsLastRun, m.pane.scrollOffset = false, 0
	case s.LastExit == nil:
		m.message = message{"no run of " + m.serviceLabel(s.ID()) + " has ended yet", true}
	default:
		m.pane.kind, m.pane.showsLastRun, m.pane.scrollOffset = logPane, true, 0
	}
}

// raiseMinLevel raises the minimum level of the shown lines by one. After the highest level it shows all lines again.
func (m *Model) raiseMinLevel() {
	next := map[loglevel.Level]loglevel.Level{0: loglevel.Info, loglevel.Info: loglevel.Warning, loglevel.Warning: loglevel.Error}
	m.pane.minLevel, m.pane.scrollOffset = next[m.pane.minLevel], 0
	m.message = message{"lines of all levels", false}
	if m.pane.minLevel != 0 {
		m.message.text = "lines of level " + m.pane.minLevel.String() + " and above"
	}
}

// visibleLines returns the log lines that have at least the minimum level.
func (p *pane) visibleLines() []LogLine {
	if p.minLevel == 0 {
		return p.lines
	}
	return slices.DeleteFunc(slices.Clone(p.lines), func(l LogLine) bool { return l.level < p.minLevel })
}

// LogText returns the lines that the log pane shows, each with its time, not escaped.
func (m *Model) LogText() string {
	var b strings.Builder
	for _, l := range m.pane.visibleLines() {
		if !l.At.IsZero() {
			b.WriteString(l.At.Format(time.RFC3339Nano) + " ")
		}
		b.WriteString(l.Text + "\n")
	}
	return b.String()
}

// scroll scrolls the pane by a number of lines. A positive number scrolls towards the end.
func (m *Model) scroll(by int) {
	if m.pane.kind == detailPane {
		by = -by
	}
	m.pane.scrollOffset = max(m.pane.scrollOffset-by, 0)
	m.pane.scrollOffset = min(m.pane.scrollOffset, max(len(m.paneLines(m.pane.scrollOffset+1))-1, 0))
}

// jumpToMatch scrolls to the next match of the search, towards the beginning if by is -1, and towards the end if by is 1.
func (m *Model) jumpToMatch(by int) {
	lines := m.paneLines(math.MaxInt)
	at := lo.Ternary(m.pane.kind == detailPane, m.pane.scrollOffset, len(lines)-1-m.pane.scrollOffset)
	for i := at + by; i >= 0 && i < len(lines); i += by {
		if strings.Contains(strings.ToLower(lines[i].String()), strings.ToLower(m.pane.search)) {
			m.pane.scrollOffset = len(lines) - 1 - i
			if m.pane.kind == detailPane {
				m.pane.scrollOffset = i
			}
			return
		}
	}
	m.message = message{fmt.Sprintf("no further %q", m.pane.search), true}
}

// paneLines returns the lines of the pane, wrapped to the width of the screen. Of a log it returns at least the last `enough`
// lines. It need not wrap earlier lines, which an agent can make very long.
func (m *Model) paneLines(enough int) (out []frame.Line) {
	switch m.pane.kind {
	case logPane:
		return m.logLines(enough)
	case eventPane:
		out = m.eventLines()
	case detailPane:
		out = m.detailLines()
	case noPane:
	}
	return lo.FlatMap(out, func(l frame.Line, _ int) []frame.Line { return l.Wrap(m.width) })
}

func (m *Model) paneTitle() string {
	name := ""
	s, is := m.serviceAtCursor()
	if is {
		name = m.serviceLabel(s.ID())
	}
	title := map[paneKind]string{logPane: "log of " + name, eventPane: "events", detailPane: name}[m.pane.kind]
	if m.pane.kind == logPane {
		if m.pane.showsLastRun && is && s.LastExit != nil {
			title += ", the run before: " + show.EscapeLine(show.LastExitTextAt(s.LastExit, m.now))
		}
		if m.pane.minLevel != 0 {
			title += ", " + m.pane.minLevel.String() + " and above"
		}
	}
	if m.pane.scrollOffset > 0 && m.pane.kind != detailPane {
		title += fmt.Sprintf(" (%d lines back; end follows)", m.pane.scrollOffset)
	}
	if m.pane.search != "" {
		title += " /" + show.EscapeLine(m.pane.search)
	}
	return title
}

var colourSequence = regexp.MustCompile("\x1b\\[[0-9;:]*m")

// plainLogText makes a log line safe to show: it removes colours, replaces tabs by spaces, and escapes control characters.
func plainLogText(text string) string {
	return show.EscapeLine(strings.ReplaceAll(colourSequence.ReplaceAllString(text, ""), "\t", "    "))
}

// logLines returns the last lines of the log of the service at the cursor, wrapped, for [Model.paneLines]. Without lines, it
// returns a line with the reason.
func (m *Model) logLines(enough int) (out []frame.Line) {
	s, is := m.serviceAtCursor()
	if !is {
		return nil
	}
	lines, why := m.pane.visibleLines(), ""
	switch {
	case s.Log == "":
		why = "it has no log file of its own: its output is in the container's log (docker logs)"
	case m.pane.shownLog != m.DataNeeds().Log:
		why = "reading " + show.EscapeLine(s.Log)
	case len(m.pane.lines) == 0 && m.pane.showsLastRun:
		why = "the run before has written nothing"
	case len(m.pane.lines) == 0:
		why = "it has written nothing yet"
	case len(lines) == 0:
		why = fmt.Sprintf("none of %d lines has this level; L chooses another", len(m.pane.lines))
	}
	if why != "" {
		line := frame.Text(frame.Dim, why)
		return line.Wrap(m.width)
	}
	for _, l := range slices.Backward(lines) {
		if len(out) >= enough {
			break
		}
		var line frame.Line
		if !l.At.IsZero() {
			line.Add(frame.Dim, l.At.Format("15:04:05 "))
		}
		role := frame.Plain
		switch {
		case l.level >= loglevel.Error:
			role = frame.Bad
		case l.level >= loglevel.Warning:
			role = frame.Changing
		}
		line.Add(role, plainLogText(l.Text))
		parts := line.Wrap(m.width)
		slices.Reverse(parts)
		out = append(out, parts...)
	}
	slices.Reverse(out)
	return out
}

func (m *Model) eventLines() []frame.Line {
	out := make([]frame.Line, 0, len(m.pane.events))
	for _, e := range m.pane.events {
		var l frame.Line
		if e.LostCount > 0 {
			out = append(out, frame.Text(frame.Dim, fmt.Sprintf("%d events are gone", e.LostCount)))
			continue
		}
		l.Add(frame.Dim, e.At.Local().Format("15:04:05 "))
		l.Add(frame.Title, m.serviceLabel(ID{e.host, e.Service})+" ")
		if e.ToState != "" {
			roles := map[string]frame.Role{client.StateBackoff: frame.Bad, client.StateFailed: frame.Bad, client.StateParked: frame.Bad, client.StateUp: frame.Good}
			l.Add(roles[e.ToState], e.FromState+" → "+e.ToState+" ")
		}
		l.Add(frame.Plain, show.EscapeLine(e.Reason))
		if e.Exit != nil {
			l.Add(frame.Bad, " "+show.EscapeLine(e.Exit.Cause))
		}
		out = append(out, l)
	}
	if len(out) == 0 {
		out = append(out, frame.Text(frame.Dim, "nothing has happened yet"))
	}
	return out
}

func (m *Model) detailLines() (out []frame.Line) {
	s, is := m.serviceAtCursor()
	if !is {
		return nil
	}
	const logged = "           | " // heading of a log line, shown even for an empty line
	say := func(role frame.Role, head, text string) {
		if text != "" || head == logged {
			out = append(out, frame.Line{Spans: []frame.Span{{Text: head, Role: frame.Dim}, {Text: text, Role: role}}})
		}
	}
	mark := gradeMarks[m.gradeOf(s)]
	text := fmt.Sprintf("%s %s for %s, wanted %s", mark.sign, stateWord(s.Service), formatAge(m.now.Sub(s.Since)), show.EscapeLine(s.Want))
	if s.PID != 0 {
		text += fmt.Sprintf(", pid %d, run %d", s.PID, s.RunNumber)
	}
	say(mark.role, "", text)
	say(frame.Plain, "note       ", show.EscapeLine(show.ProblemNote(s.Service, m.now)))
	say(frame.Plain, "why        ", show.EscapeLine(s.Reason))
	if x := s.LastExit; x != nil {
		say(frame.Plain, "last exit  ", show.EscapeLine(show.LastExitTextAt(x, m.now))+", after "+show.FormatSeconds(x.UptimeSeconds))
		for _, line := range x.Tail {
			say(frame.Plain, logged, plainLogText(line))
		}
	}
	if s.Group != "" {
		say(frame.Plain, "group      ", "@"+show.EscapeLine(s.Group))
	}
	say(frame.Plain, "restarts   ", fmt.Sprintf("%d, of them %d quick failures in a row", s.Restarts, s.ConsecutiveFailures))
	say(frame.Plain, "command    ", show.EscapeLine(strings.Join(s.Command, " ")))
	say(frame.Plain, "log        ", show.EscapeLine(s.Log))
	in := m.pane.details
	if in.ID != s.ID() {
		return out
	}
	say(frame.Dim, "inside     ", show.EscapeLine(in.Missing))
	head := "processes  "
	for _, p := range in.Processes {
		say(frame.Plain, head, fmt.Sprintf("%s%d %s %s", strings.Repeat("  ", min(p.Depth, 12)), p.PID, formatSize(p.Memory), show.EscapeLine(p.Command)))
		head = "           "
	}
	head = "environ    "
	for _, v := range in.Environment {
		say(frame.Plain, head, show.EscapeLine(v))
		head = "           "
	}
	return out
}

// visiblePart returns the part of the pane that fits into height lines, with the matches of the search highlighted.
func (m *Model) visiblePart(height int) []frame.Line {
	lines := m.paneLines(m.pane.scrollOffset + height)
	end := len(lines) - m.pane.scrollOffset
	begin := end - height
	if m.pane.kind == detailPane {
		begin = min(m.pane.scrollOffset, max(len(lines)-1, 0))
		end = begin + height
	}
	if begin < 0 {
		begin, end = 0, height
	}
	lines = lines[min(begin, len(lines)):min(max(end, 0), len(lines))]
	if m.pane.search != "" {
		for i := range lines {
			lines[i].Spans = markMatches(lines[i].Spans, m.pane.search)
		}
	}
	return lines
}

// markMatches highlights each match of search in spans, ignoring upper and lower case.
func markMatches(spans []frame.Span, search string) (out []frame.Span) {
	low := strings.ToLower(search)
	for _, s := range spans {
		text := s.Text
		for {
			lower := strings.ToLower(text)
			i := strings.Index(lower, low)
			if i < 0 || len(lower) != len(text) { // if lowering the case has changed the length, positions in lower don't fit text
				break
			}
			out = append(out, frame.Span{Text: text[:i], Role: s.Role}, frame.Span{Text: text[i : i+len(low)], Role: frame.SearchMatch})
			text = text[i+len(low):]
		}
		out = append(out, frame.Span{Text: text, Role: s.Role})
	}
	return out
}
