package model

import (
	_ "embed" // for the text of the keys
	"fmt"
	"slices"
	"strings"

	"github.com/samber/lo"

	"hinit/internal/control/show"
	"hinit/internal/top/frame"
)

// screenLayout says where the parts of the screen are, in lines.
type screenLayout struct {
	headLine  int // line with the titles of the columns; -1 if the table is not shown
	tableRows int // number of rows of the table
	paneLine  int // line with the title of the pane
	paneLines int // number of lines of the pane below its title
}

// minTableRows is the number of rows that the table keeps while a pane is shown. If the terminal has no room for them, the pane
// replaces the table.
const minTableRows = 4

func (m *Model) layout() (at screenLayout) {
	at.headLine = len(m.hostLines())
	body := max(m.height-at.headLine-2, 0) // lines besides the column titles and the last line
	at.tableRows = body
	if m.pane.kind == noPane {
		return at
	}
	at.paneLines = max(body/2, 6)
	at.tableRows = body - at.paneLines - 1
	if at.tableRows < minTableRows || m.pane.zoomed {
		at.tableRows, at.paneLines = 0, max(body, 0)
		at.paneLine = at.headLine
		at.headLine = -1
		return at
	}
	at.paneLine = at.headLine + 1 + at.tableRows
	return at
}

// Frame draws the screen.
func (m *Model) Frame() frame.Frame {
	f := frame.Frame{Width: m.width, Height: m.height}
	if m.prompt == helpPrompt {
		f.Lines = m.helpLines()
		return f
	}
	at := m.layout()
	f.Lines = m.hostLines()
	if at.headLine >= 0 {
		f.Lines = append(f.Lines, m.tableLines(at.tableRows)...)
	}
	if at.paneLines > 0 {
		f.Lines = append(f.Lines, m.paneHead())
		f.Lines = append(f.Lines, padLines(m.visiblePart(at.paneLines), at.paneLines)...)
	}
	f.Lines = append(padLines(f.Lines, m.height-1), m.bottomLine())
	return f
}

// padLines returns exactly count lines: it drops lines at the end or appends empty ones.
func padLines(lines []frame.Line, count int) []frame.Line {
	return append(slices.Clip(lines), make([]frame.Line, max(count-len(lines), 0))...)[:max(count, 0)]
}

// tableLines returns the line with the column titles, and height lines with rows of the table. It scrolls the table so that the
// cursor is visible.
func (m *Model) tableLines(height int) []frame.Line {
	columns := m.columns()
	head := frame.Line{}
	head.Add(frame.Title, "  ")
	for i, c := range columns {
		if i > 0 {
			head.Add(frame.Title, " ")
		}
		title := c.title
		if c.sort == m.table.sort && title != "" && c.sort != byTrouble {
			title += lo.Ternary(m.table.reversed, "▴", "▾")
		}
		if c.alignRight {
			title = frame.PadLeft(title, c.width)
		}
		head.Add(frame.Title, frame.PadRight(title, c.width))
	}
	out := []frame.Line{head}
	t := &m.table
	t.firstShown = min(t.firstShown, max(len(t.rows)-height, 0))
	t.firstShown = max(min(t.firstShown, t.cursorIndex), t.cursorIndex-height+1, 0)
	for i := t.firstShown; i < min(t.firstShown+height, len(t.rows)); i++ {
		out = append(out, m.rowLine(i, columns))
	}
	if len(t.rows) == 0 {
		text := lo.Ternary(t.filter != "", "no service matches the filter; esc clears it", "no services")
		if height > 0 && m.anyAnswered() {
			out = append(out, frame.Text(frame.Dim, "  "+text))
		}
	}
	return padLines(out, height+1)
}

func (m *Model) rowLine(i int, columns []column) frame.Line {
	r := m.table.rows[i]
	l := frame.Line{AtCursor: i == m.table.cursorIndex}
	marked := r.isService && m.table.marked[r.service.ID()]
	// The sign at the beginning of a row shows the cursor and the mark, for users who can't see the colours.
	mark := map[[2]bool]string{{}: "  ", {true, false}: "> ", {false, true}: "+ ", {true, true}: ">+"}[[2]bool{l.AtCursor, marked}]
	l.Add(frame.MarkedService, mark)
	if !r.isService {
		m.writeGroupHead(&l, r)
		return l
	}
	for i, c := range columns {
		if i > 0 {
			l.Add(frame.Plain, " ")
		}
		text, role := c.cell(m, r.service, c.width)
		if c.alignRight {
			text = frame.PadLeft(text, c.width)
		}
		if marked && c.sort == byName {
			role = frame.MarkedService
		}
		l.Add(role, frame.PadRight(text, c.width))
	}
	return l
}

func (m *Model) paneHead() frame.Line {
	title := m.paneTitle()
	sign := lo.Ternary(m.pane.focused, "═ ", "─ ")
	rest := m.width - frame.Width(title) - 3
	return frame.Text(frame.Title, sign+title+" "+strings.Repeat(sign[:len("─")], max(rest, 0)))
}

// bottomLine returns the last line of the screen: a question, a message, or a list of keys.
func (m *Model) bottomLine() (l frame.Line) {
	switch {
	case m.prompt == filterPrompt:
		l.Add(frame.KeyHint, "filter: ")
		l.Add(frame.Plain, show.EscapeLine(m.table.filter)+"_")
	case m.prompt == searchPrompt:
		l.Add(frame.KeyHint, "search: ")
		l.Add(frame.Plain, show.EscapeLine(m.pane.search)+"_")
	case m.prompt == signalPrompt, m.prompt == filePrompt:
		l.Add(frame.KeyHint, m.confirmationQuestion())
		l.Add(frame.Plain, show.EscapeLine(m.typedWord)+"_")
	case m.prompt == orderPrompt:
		l.Add(frame.Bad, m.confirmationQuestion())
	case m.message.text != "":
		role := lo.Ternary(m.message.isError, frame.Bad, frame.Good)
		l.Add(role, show.EscapeLine(m.message.text))
	case m.rollout != nil:
		l.Add(frame.Changing, fmt.Sprintf("rollout: %d of %d ready, now %s; esc ends it", m.rollout.doneCount, m.rollout.total, m.serviceLabel(m.rollout.running)))
	default:
		if m.table.filter != "" {
			l.Add(frame.SearchMatch, "/"+show.EscapeLine(m.table.filter))
			l.Add(frame.Plain, " ")
		}
		list := lo.Ternary(m.pane.kind == logPane, "log", "table")
		for _, k := range Keys(list) {
			if l.Width()+len(k[0])+1+len(k[1]) > m.width {
				break
			}
			l.Add(frame.KeyHint, k[0])
			l.Add(frame.Dim, " "+k[1]+"  ")
		}
	}
	return l
}

// keyText lists the keys with their effects, for the last line of the screen and for the help. Each line is a key, a tab and the
// meaning.
//
//go:embed keys.txt
var keyText string

// Keys returns a list of keys with their effects. The list "help" has all keys. The lists "table" and "log" are for the last line
// of the screen. They begin with the most important key, because a narrow screen shows only the first ones.
func Keys(list string) (keys [][2]string) {
	_, text, _ := strings.Cut(keyText, "["+list+"]\n")
	text, _, _ = strings.Cut(text, "\n\n")
	for line := range strings.Lines(text) {
		key, meaning, _ := strings.Cut(strings.TrimSpace(line), "\t")
		keys = append(keys, [2]string{key, meaning})
	}
	return keys
}

// helpLines returns the lines of the help, scrolled to m.helpOffset. On a narrow screen, the description is on the line after the
// key.
func (m *Model) helpLines() []frame.Line {
	const indent = 14
	var lines []frame.Line
	for _, k := range Keys("help") {
		var l frame.Line
		l.Add(frame.KeyHint, frame.PadRight(k[0], indent)+" ")
		if frame.Width(k[1]) <= m.width-indent-1 {
			l.Add(frame.Plain, k[1])
			lines = append(lines, l)
			continue
		}
		lines = append(lines, l)
		for _, part := range frame.Wrap(k[1], max(m.width-2, 1)) {
			lines = append(lines, frame.Text(frame.Plain, "  "+part))
		}
	}
	out := []frame.Line{frame.Text(frame.Title, "hinit top: keys (down: next page, any other: back)")}
	m.helpOffset = max(min(m.helpOffset, len(lines)-m.height+1), 0)
	return padLines(append(out, lines[m.helpOffset:]...), m.height)
}
