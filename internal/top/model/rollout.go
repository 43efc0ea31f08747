package model

import (
	"fmt"
	"strings"

	"hinit/client"
)

// pending is an order that waits for a confirmation.
type pending struct {
	verb    client.Verb
	ids     []ID
	rollout bool
}

// rollout restarts services one after the other. The next restart begins when the service before is ready.
type rollout struct {
	queue   []ID
	running ID
	done    int
	all     int
	ended   bool // the user has stopped the rollout
}

// ask asks the user to confirm an order for the chosen services, or to type the word that it needs.
func (m *Model) ask(verb client.Verb, how asking, inTurn bool) {
	ids := m.chosen()
	switch {
	case len(ids) == 0:
		m.message = message{"no service is chosen", true}
	case m.rollout != nil:
		m.message = message{"a rollout is under way; esc ends it after " + m.label(m.rollout.running), true}
	default:
		m.pending, m.asking, m.word = pending{verb, ids, inTurn}, how, ""
	}
}

// question returns the question on the last line.
func (m *Model) question() string {
	names := make([]string, len(m.pending.ids))
	for i, id := range m.pending.ids {
		names[i] = m.label(id)
	}
	what, whom := string(m.pending.verb), names[0]
	if m.pending.rollout {
		what = "restart one after the other"
	}
	if len(names) > 1 {
		whom = fmt.Sprintf("%d services", len(names))
	}
	switch {
	case m.asking == signalAsked:
		return "signal to " + whom + " (HUP, USR1, 15; enter sends, esc doesn't): "
	case m.asking == fileAsked:
		return "write the log of " + whom + " to the new file: "
	case len(names) == 1:
		return fmt.Sprintf("%s %s? y/n", what, whom)
	}
	return fmt.Sprintf("%s %s? y/n  %s", what, whom, strings.Join(names, " "))
}

// answered applies a key to the word that the user types. It returns the orders when the word is complete.
func (m *Model) answered(key string) []Order {
	was := m.asking
	m.typed(key, &m.word)
	switch {
	case m.asking != nothing:
		return nil
	case m.word == "":
		m.pending = pending{}
		return nil
	}
	m.asking = was
	return m.confirmed()
}

// confirmed returns the orders that the user has confirmed.
func (m *Model) confirmed() (orders []Order) {
	p := m.pending
	m.pending, m.asking = pending{}, nothing
	if p.verb != VerbSave {
		m.table.marks = make(map[ID]bool)
	}
	if p.rollout {
		m.rollout = &rollout{queue: p.ids, all: len(p.ids)}
		return m.next()
	}
	for _, id := range p.ids {
		orders = append(orders, Order{p.verb, id, m.word})
	}
	m.message = message{fmt.Sprintf("%s: %d asked for", p.verb, len(orders)), false}
	return orders
}

// next returns the next order of the rollout.
func (m *Model) next() []Order {
	r := m.rollout
	if len(r.queue) == 0 || r.ended {
		m.message = message{fmt.Sprintf("rollout: %d of %d are restarted and ready", r.done, r.all), r.done < r.all}
		m.rollout = nil
		return nil
	}
	r.running, r.queue = r.queue[0], r.queue[1:]
	return []Order{{Verb: client.VerbRestart, ID: r.running}}
}

// rolled handles the end of one restart of the rollout.
func (m *Model) rolled(result Result) []Order {
	r := m.rollout
	if result.Err != nil {
		m.message = message{fmt.Sprintf("rollout stopped at %s, %d of %d are done: %s", m.label(r.running), r.done, r.all, oneLine(result.Err.Error())), true}
		m.rollout = nil
		return nil
	}
	r.done++
	return m.next()
}
