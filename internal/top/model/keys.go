package model

import (
	"cmp"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/samber/lo"

	"hinit/client"
	"hinit/internal/top/frame"
)

// pageLines is the number of lines by which the keys pgup and pgdn scroll.
const pageLines = 10

// Key handles a key, such as "a", "up" or "ctrl+c". It returns the orders to carry out.
func (m *Model) Key(key string) []Order {
	if key == "ctrl+c" {
		m.quitting = true
		return nil
	}
	m.message = message{}
	switch m.prompt {
	case filterPrompt:
		m.editText(key, &m.table.filter)
		m.rebuildRows()
		return nil
	case searchPrompt:
		if m.editText(key, &m.pane.search); key == "enter" && m.pane.search != "" {
			m.jumpToMatch(-1)
		}
		return nil
	case signalPrompt, filePrompt:
		return m.handleTypedWord(key)
	case orderPrompt:
		if key == "y" || key == "enter" {
			return m.confirmedOrders()
		}
		m.pending, m.prompt = pendingOrder{}, noPrompt
		return nil
	case helpPrompt:
		by, scrolls := map[string]int{"down": 1, "j": 1, "pgdown": pageLines, "space": pageLines, "up": -1, "k": -1, "pgup": -pageLines}[key]
		if m.helpOffset += by; !scrolls {
			m.prompt, m.helpOffset = noPrompt, 0
		}
		return nil
	case noPrompt:
	}
	if m.handleMove(key) || m.handleView(key) {
		return nil
	}
	return m.handleOrder(key)
}

// Paste handles one letter of pasted text: it appends the letter to a text that the user is typing. Otherwise it ignores the
// letter, so that pasted text doesn't trigger commands.
func (m *Model) Paste(letter rune) {
	if m.prompt > noPrompt && m.prompt < orderPrompt && letter >= ' ' {
		m.Key(string(letter))
	}
}

// editText applies a key to the text that the user is typing.
func (m *Model) editText(key string, text *string) {
	switch key {
	case "enter":
		m.prompt = noPrompt
	case "esc":
		*text, m.prompt = "", noPrompt
	case "backspace":
		_, n := utf8.DecodeLastRuneInString(*text)
		*text = (*text)[:len(*text)-n]
	case "ctrl+u":
		*text = ""
	case "space":
		*text += " "
	case "up", "down":
		m.handleMove(key)
	default:
		if utf8.RuneCountInString(key) == 1 {
			*text += key
		}
	}
}

// handleMove handles the keys that move the cursor or scroll. For any other key it returns false.
func (m *Model) handleMove(key string) bool {
	far := map[string]int{
		"up": -1, "k": -1, "down": 1, "j": 1, "pgup": -pageLines, "pgdown": pageLines, "ctrl+b": -pageLines, "ctrl+f": pageLines,
		"home": -1 << 20, "g": -1 << 20, "end": 1 << 20, "G": 1 << 20,
	}
	by, is := far[key]
	switch {
	case !is:
		return false
	case m.pane.focused:
		m.scroll(by)
	default:
		m.moveCursor(by)
	}
	return true
}

// handleView handles the keys that change the view. For any other key it returns false.
func (m *Model) handleView(key string) bool {
	t := &m.table
	switch key {
	case "q":
		m.quitting = true
	case "?", "f1", "h":
		m.prompt = helpPrompt
	case "/":
		m.prompt = filterPrompt
		if m.pane.focused {
			m.prompt, m.pane.search = searchPrompt, ""
		}
	case "n", "N":
		if m.pane.search != "" {
			m.jumpToMatch(map[string]int{"n": -1, "N": 1}[key])
		}
	case "<", ">", "left", "right":
		count := lo.Ternary(len(m.hosts) == 1, byHost, numSortColumns) // the last column shows the host, so a screen with one host lacks it
		step := lo.Ternary(key == "<" || key == "left", count-1, sortColumn(1))
		m.sortBy((t.sort + step) % count)
	case "i":
		t.reversed = !t.reversed
		m.rebuildRows()
	case "p":
		m.nextGrouping()
	case "f":
		m.toggleFold()
	case "l":
		m.togglePane(logPane)
	case "e":
		m.togglePane(eventPane)
	case "d":
		m.togglePane(detailPane)
	case "enter":
		if _, is := m.serviceAtCursor(); is || len(t.rows) == 0 {
			m.togglePane(detailPane)
		} else {
			m.toggleFold()
		}
	case "b":
		m.toggleLastRun()
	case "L":
		m.raiseMinLevel()
	case "tab":
		m.pane.focused = m.pane.kind != noPane && !m.pane.focused
	case "z":
		m.pane.zoomed = !m.pane.zoomed
	case "t":
		m.theme = (m.theme + 1) % len(frame.Themes)
		m.message = message{"theme: " + frame.Themes[m.theme].Name, false}
	case "esc":
		m.handleEscape()
	default:
		return false
	}
	return true
}

// sortBy sorts the table by a column. If the table is already sorted by this column, it reverses the order.
func (m *Model) sortBy(column sortColumn) {
	if m.table.sort == column {
		m.table.reversed = !m.table.reversed
	} else {
		m.table.sort, m.table.reversed = column, false
	}
	m.message = message{"sorted by " + sortColumnNames[m.table.sort], false}
	m.rebuildRows()
}

// togglePane opens a pane below the table, or closes it if it is open.
func (m *Model) togglePane(kind paneKind) {
	if m.pane.kind == kind {
		kind = noPane
	}
	m.pane.kind, m.pane.scrollOffset = kind, 0
	if kind == noPane {
		m.pane.focused, m.pane.zoomed = false, false
	}
}

// handleEscape handles the key esc. Each press undoes one thing, in this order: rollout, search, level of the log, pane, marks,
// filter.
func (m *Model) handleEscape() {
	switch {
	case m.rollout != nil:
		m.rollout.ended = true
		m.message = message{"the rollout ends after " + m.serviceLabel(m.rollout.running), false}
	case m.pane.search != "":
		m.pane.search = ""
	case m.pane.kind == logPane && m.pane.minLevel != 0:
		m.pane.minLevel = 0
	case m.pane.kind != noPane:
		m.togglePane(m.pane.kind)
	case len(m.table.marked) > 0:
		m.table.marked = make(map[ID]bool)
	default:
		m.table.filter = ""
		m.rebuildRows()
	}
}

// handleOrder handles the keys that mark services or give orders. It returns the orders that need no confirmation.
func (m *Model) handleOrder(key string) []Order {
	s, is := m.serviceAtCursor()
	switch key {
	case "space":
		if is && m.table.marked[s.ID()] {
			delete(m.table.marked, s.ID())
		} else if is {
			m.table.marked[s.ID()] = true
		}
		m.moveCursor(1)
	case "*":
		for _, r := range m.table.rows {
			if r.isService {
				m.table.marked[r.service.ID()] = true
			}
		}
	case "s", "x", "r", "R":
		verbs := map[string]client.Verb{"s": client.VerbStart, "x": client.VerbStop}
		m.askToConfirm(cmp.Or(verbs[key], client.VerbRestart), orderPrompt, key == "R")
	case "S":
		m.askToConfirm(VerbSignal, signalPrompt, false)
	case "!":
		if is {
			return []Order{{Verb: VerbShell, ID: s.ID()}}
		}
	case "w":
		if !is || m.pane.kind != logPane {
			m.message = message{"there is no log on the screen to write; l shows one", true}
			break
		}
		m.pending, m.prompt, m.typedWord = pendingOrder{verb: VerbSave, ids: []ID{s.ID()}}, filePrompt, strings.ReplaceAll(s.Name, "/", "_")+".log"
	}
	return nil
}

// Click handles a mouse click at a position on the screen.
func (m *Model) Click(x, y int) {
	at := m.layout()
	switch {
	case m.prompt == helpPrompt:
		m.prompt = noPrompt
	case m.prompt != noPrompt:
	case y == at.headLine:
		for _, c := range m.columns() {
			if x < 2+c.width+1 {
				m.sortBy(c.sort)
				return
			}
			x -= c.width + 1
		}
	case y > at.headLine && y <= at.headLine+at.tableRows:
		m.pane.focused = false
		if i := m.table.firstShown + y - at.headLine - 1; i < len(m.table.rows) {
			if m.setCursor(i); !m.table.rows[i].isService {
				m.toggleFold()
			}
		}
	case at.paneLines > 0 && y >= at.paneLine:
		m.pane.focused = true
	}
}

// Wheel handles the mouse wheel. y is the line of the pointer. A positive by scrolls down.
func (m *Model) Wheel(y, by int) {
	if at := m.layout(); m.pane.kind != noPane && y >= at.paneLine {
		m.scroll(3 * by)
		return
	}
	m.moveCursor(3 * by)
}

// pendingOrder is an order that waits for the user's confirmation.
type pendingOrder struct {
	verb    client.Verb
	ids     []ID
	rollout bool
}

// rollout restarts several services one after the other. Each restart begins when the previous service is ready.
type rollout struct {
	queue     []ID
	running   ID
	doneCount int
	total     int
	ended     bool // the user has stopped the rollout
}

// askToConfirm asks the user to confirm an order for the chosen services, or to type the word that the order needs. how selects
// the question. If inTurn is true, the order is a rollout.
func (m *Model) askToConfirm(verb client.Verb, how promptKind, inTurn bool) {
	ids := m.orderTargets()
	switch {
	case len(ids) == 0:
		m.message = message{"no service is chosen", true}
	case m.rollout != nil:
		m.message = message{"a rollout is under way; esc ends it after " + m.serviceLabel(m.rollout.running), true}
	default:
		m.pending, m.prompt, m.typedWord = pendingOrder{verb, ids, inTurn}, how, ""
	}
}

// confirmationQuestion returns the question about the pending order, for the last line of the screen.
func (m *Model) confirmationQuestion() string {
	names := lo.Map(m.pending.ids, func(id ID, _ int) string { return m.serviceLabel(id) })
	what, whom := string(m.pending.verb), names[0]
	if m.pending.rollout {
		what = "restart one after the other"
	}
	if len(names) > 1 {
		whom = fmt.Sprintf("%d services", len(names))
	}
	switch {
	case m.prompt == signalPrompt:
		return "signal to " + whom + " (HUP, USR1, 15; enter sends, esc doesn't): "
	case m.prompt == filePrompt:
		return "write the log of " + whom + " to the new file: "
	case len(names) == 1:
		return fmt.Sprintf("%s %s? y/n", what, whom)
	}
	return fmt.Sprintf("%s %s? y/n  %s", what, whom, strings.Join(names, " "))
}

// handleTypedWord applies a key to the word that the user is typing. It returns the orders to carry out when the word is
// complete.
func (m *Model) handleTypedWord(key string) []Order {
	was := m.prompt
	m.editText(key, &m.typedWord)
	switch {
	case m.prompt != noPrompt:
		return nil
	case m.typedWord == "":
		m.pending = pendingOrder{}
		return nil
	}
	m.prompt = was
	return m.confirmedOrders()
}

// confirmedOrders returns the orders of the pending order that the user has just confirmed.
func (m *Model) confirmedOrders() []Order {
	p := m.pending
	m.pending, m.prompt = pendingOrder{}, noPrompt
	if p.verb != VerbSave {
		m.table.marked = make(map[ID]bool)
	}
	if p.rollout {
		m.rollout = &rollout{queue: p.ids, total: len(p.ids)}
		return m.nextOfRollout()
	}
	m.message = message{fmt.Sprintf("%s: %d asked for", p.verb, len(p.ids)), false}
	return lo.Map(p.ids, func(id ID, _ int) Order { return Order{p.verb, id, m.typedWord} })
}

// nextOfRollout returns the order for the next service of the rollout. Without a next service, or if the user has stopped the
// rollout, it ends the rollout.
func (m *Model) nextOfRollout() []Order {
	r := m.rollout
	if len(r.queue) == 0 || r.ended {
		m.message = message{fmt.Sprintf("rollout: %d of %d are restarted and ready", r.doneCount, r.total), r.doneCount < r.total}
		m.rollout = nil
		return nil
	}
	r.running, r.queue = r.queue[0], r.queue[1:]
	return []Order{{Verb: client.VerbRestart, ID: r.running}}
}

// advanceRollout continues the rollout after a restart: it returns the next order. A failed restart stops the rollout.
func (m *Model) advanceRollout(failed error) []Order {
	r := m.rollout
	if failed != nil {
		m.message = message{fmt.Sprintf("rollout stopped at %s, %d of %d are done: %s", m.serviceLabel(r.running), r.doneCount, r.total, oneLine(failed.Error())), true}
		m.rollout = nil
		return nil
	}
	r.doneCount++
	return m.nextOfRollout()
}
