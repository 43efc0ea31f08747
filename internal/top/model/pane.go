package model

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	"hinit/client"
	"hinit/internal/control/show"
	"hinit/internal/top/frame"
)

// Limits for the lines of a pane.
const (
	keptLines  = 2000
	keptEvents = 500
)

// LogLine is a line of a log. Its text may be anything.
type LogLine struct {
	At   time.Time // zero where the file does not say
	Text string
}

// pane is what stands below the table.
type pane struct {
	kind    paneKind
	focused bool
	zoomed  bool
	back    int // lines from the end (log, events) or from the beginning (details)
	search  string
	name    string // whose log it has
	lines   []LogLine
	events  []client.Event
	inside  Inside
}

// moved says that the cursor is at another service.
func (p *pane) moved() {
	if p.kind != eventPane {
		p.back = 0
	}
}

func (p *pane) event(e client.Event) {
	p.events = append(p.events, e)
	if over := len(p.events) - keptEvents; over > 0 {
		p.events = append(p.events[:0], p.events[over:]...)
	}
	if p.kind == eventPane && p.back > 0 {
		p.back++ // what is looked at stays
	}
}

func (p *pane) log(name string, lines []LogLine) {
	if p.name != name || len(lines) == 0 { // it is read from its beginning, or another one
		p.name, p.lines = name, nil
	}
	p.lines = append(p.lines, lines...)
	if over := len(p.lines) - keptLines; over > 0 {
		p.lines = append(p.lines[:0], p.lines[over:]...)
	}
	if p.kind == logPane && p.back > 0 {
		p.back = min(p.back+len(lines), len(p.lines))
	}
}

// scroll moves what a pane shows by lines, towards the end for more than 0.
func (m *Model) scroll(by int) {
	if m.pane.kind == detailPane {
		by = -by
	}
	m.pane.back = max(m.pane.back-by, 0)
	m.pane.back = min(m.pane.back, max(len(m.paneLines())-1, 0))
}

// jump goes to the next line that has what was searched for, towards the beginning for less than 0.
func (m *Model) jump(by int) {
	lines := m.paneLines()
	at := len(lines) - 1 - m.pane.back
	if m.pane.kind == detailPane {
		at = m.pane.back
	}
	for i := at + by; i >= 0 && i < len(lines); i += by {
		if strings.Contains(strings.ToLower(lines[i].String()), strings.ToLower(m.pane.search)) {
			m.pane.back = len(lines) - 1 - i
			if m.pane.kind == detailPane {
				m.pane.back = i
			}
			return
		}
	}
	m.message = message{fmt.Sprintf("no further %q", m.pane.search), true}
}

// paneLines are all lines of the pane, none wider than the screen.
func (m *Model) paneLines() []frame.Line {
	whole := m.wholeLines()
	out := make([]frame.Line, 0, len(whole))
	for i := range whole {
		out = append(out, whole[i].Wrap(m.width)...)
	}
	return out
}

func (m *Model) wholeLines() []frame.Line {
	switch m.pane.kind {
	case logPane:
		return m.logLines()
	case eventPane:
		return m.eventLines()
	case detailPane:
		return m.detailLines()
	case noPane:
	}
	return nil
}

func (m *Model) paneTitle() string {
	name := ""
	if s := m.current(); s != nil {
		name = label(s.Name)
	}
	title := map[paneKind]string{logPane: "log of " + name, eventPane: "events", detailPane: name}[m.pane.kind]
	if m.pane.back > 0 && m.pane.kind != detailPane {
		title += fmt.Sprintf(" (%d lines back; end follows)", m.pane.back)
	}
	if m.pane.search != "" {
		title += " /" + show.Line(m.pane.search)
	}
	return title
}

var colours = regexp.MustCompile("\x1b\\[[0-9;:]*m")

// textOf makes a line of a log safe: its colours go, tabs become spaces.
func textOf(text string) string {
	return show.Line(strings.ReplaceAll(colours.ReplaceAllString(text, ""), "\t", "    "))
}

func (m *Model) logLines() []frame.Line {
	s := m.current()
	if s == nil {
		return nil
	}
	if s.Log == "" {
		return []frame.Line{frame.Text(frame.Dim, "it has no log file of its own: its output is in the container's log (docker logs)")}
	}
	if m.pane.name != s.Name {
		return []frame.Line{frame.Text(frame.Dim, "reading "+show.Line(s.Log))}
	}
	if len(m.pane.lines) == 0 {
		return []frame.Line{frame.Text(frame.Dim, "it has written nothing yet")}
	}
	out := make([]frame.Line, len(m.pane.lines))
	for i, l := range m.pane.lines {
		if !l.At.IsZero() {
			out[i].Add(frame.Dim, l.At.Format("15:04:05 "))
		}
		out[i].Add(frame.Plain, textOf(l.Text))
	}
	return out
}

func (m *Model) eventLines() []frame.Line {
	out := make([]frame.Line, 0, len(m.pane.events))
	for _, e := range m.pane.events {
		var l frame.Line
		if e.Lost > 0 {
			out = append(out, frame.Text(frame.Dim, fmt.Sprintf("%d events are gone", e.Lost)))
			continue
		}
		l.Add(frame.Dim, e.At.Local().Format("15:04:05 "))
		l.Add(frame.Title, label(e.Service)+" ")
		role := frame.Plain
		switch e.To {
		case client.StateBackoff, client.StateFailed, client.StateParked:
			role = frame.Bad
		case client.StateUp:
			role = frame.Good
		}
		if e.To != "" {
			l.Add(role, e.From+" → "+e.To+" ")
		}
		l.Add(frame.Plain, show.Line(e.Reason))
		if e.Exit != nil {
			l.Add(frame.Bad, " "+show.Line(e.Exit.Cause))
		}
		out = append(out, l)
	}
	if len(out) == 0 {
		out = append(out, frame.Text(frame.Dim, "nothing has happened yet"))
	}
	return out
}

func (m *Model) detailLines() (out []frame.Line) {
	s := m.current()
	if s == nil {
		return nil
	}
	say := func(role frame.Role, head, text string) {
		var l frame.Line
		l.Add(frame.Dim, head)
		l.Add(role, text)
		out = append(out, l)
	}
	sign, role := look(s)
	text := fmt.Sprintf("%s %s for %s, wanted %s", sign, stateWord(s), age(m.now.Sub(s.Since)), show.Line(s.Want))
	if s.PID != 0 {
		text += fmt.Sprintf(", pid %d, run %d", s.PID, s.Run)
	}
	say(role, "", text)
	if note := show.Note(s, m.now); note != "" {
		say(frame.Plain, "note       ", show.Line(note))
	}
	if s.Reason != "" {
		say(frame.Plain, "why        ", show.Line(s.Reason))
	}
	if x := s.LastExit; x != nil {
		say(frame.Plain, "last exit  ", show.Line(show.LastExitAt(x, m.now))+", after "+show.Seconds(x.UptimeSeconds))
		for _, line := range x.Tail {
			say(frame.Plain, "           | ", textOf(line))
		}
	}
	say(frame.Plain, "restarts   ", fmt.Sprintf("%d, of them %d quick failures in a row", s.Restarts, s.ConsecutiveFailures))
	say(frame.Plain, "command    ", show.Line(strings.Join(s.Command, " ")))
	if s.Log != "" {
		say(frame.Plain, "log        ", show.Line(s.Log))
	}
	if m.pane.inside.Name != s.Name {
		return out
	}
	in := m.pane.inside
	if in.Missing != "" {
		say(frame.Dim, "inside     ", show.Line(in.Missing))
	}
	for i, p := range in.Processes {
		head := "           "
		if i == 0 {
			head = "processes  "
		}
		say(frame.Plain, head, fmt.Sprintf("%s%d %s %s", strings.Repeat("  ", min(p.Depth, 12)), p.PID, size(p.Memory), show.Line(p.Command)))
	}
	for i, v := range in.Environment {
		head := "           "
		if i == 0 {
			head = "environ    "
		}
		say(frame.Plain, head, show.Line(v))
	}
	return out
}

// window are the lines of the pane that fit, with what was searched for.
func (m *Model) window(height int) []frame.Line {
	lines := m.paneLines()
	end := len(lines) - m.pane.back
	begin := end - height
	if m.pane.kind == detailPane {
		begin = min(m.pane.back, max(len(lines)-1, 0))
		end = begin + height
	}
	if begin < 0 {
		begin, end = 0, height
	}
	lines = lines[min(begin, len(lines)):min(max(end, 0), len(lines))]
	if m.pane.search != "" {
		for i := range lines {
			lines[i].Spans = found(lines[i].Spans, m.pane.search)
		}
	}
	return lines
}

// found marks what was searched for, in any case.
func found(spans []frame.Span, search string) (out []frame.Span) {
	low := strings.ToLower(search)
	for _, s := range spans {
		text := s.Text
		for {
			lower := strings.ToLower(text)
			i := strings.Index(lower, low)
			if i < 0 || len(lower) != len(text) { // a letter that is longer in the other case moves all places
				break
			}
			out = append(out, frame.Span{Text: text[:i], Role: s.Role}, frame.Span{Text: text[i : i+len(low)], Role: frame.Found})
			text = text[i+len(low):]
		}
		out = append(out, frame.Span{Text: text, Role: s.Role})
	}
	return out
}
