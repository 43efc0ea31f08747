package model

import (
	"fmt"
	"strings"

	"hinit/client"
)

// pending is an order that waits for a yes.
type pending struct {
	verb    client.Verb
	names   []string
	rollout bool
}

// rollout is a restart of one service after the other. The next begins when the one before it is ready.
type rollout struct {
	queue   []string
	running string
	done    int
	all     int
	ended   bool // somebody has asked for no more
}

// ask asks for a yes to an order for the chosen services.
func (m *Model) ask(verb client.Verb, inTurn bool) {
	names := m.chosen()
	switch {
	case len(names) == 0:
		m.message = message{"no service is chosen", true}
	case m.rollout != nil:
		m.message = message{"a rollout is under way; esc ends it after " + label(m.rollout.running), true}
	default:
		m.pending, m.asking = pending{verb, names, inTurn}, orderAsked
	}
}

// question is what the last line asks.
func (m *Model) question() string {
	names := make([]string, len(m.pending.names))
	for i, name := range m.pending.names {
		names[i] = label(name)
	}
	what := string(m.pending.verb)
	if m.pending.rollout {
		what = "restart one after the other"
	}
	if len(names) == 1 {
		return fmt.Sprintf("%s %s? y/n", what, names[0])
	}
	return fmt.Sprintf("%s %d services? y/n  %s", what, len(names), strings.Join(names, " "))
}

// confirmed returns the orders that were asked for.
func (m *Model) confirmed() (orders []Order) {
	p := m.pending
	m.pending, m.asking = pending{}, nothing
	m.table.marks = make(map[string]bool)
	if p.rollout {
		m.rollout = &rollout{queue: p.names, all: len(p.names)}
		return m.next()
	}
	for _, name := range p.names {
		orders = append(orders, Order{p.verb, name})
	}
	m.message = message{fmt.Sprintf("%s: %d asked for", p.verb, len(orders)), false}
	return orders
}

// next is the next order of the rollout.
func (m *Model) next() []Order {
	r := m.rollout
	if len(r.queue) == 0 || r.ended {
		m.message = message{fmt.Sprintf("rollout: %d of %d are restarted and ready", r.done, r.all), r.done < r.all}
		m.rollout = nil
		return nil
	}
	r.running, r.queue = r.queue[0], r.queue[1:]
	return []Order{{client.VerbRestart, r.running}}
}

// rolled takes the end of one restart of the rollout.
func (m *Model) rolled(result Result) []Order {
	r := m.rollout
	if result.Err != nil {
		m.message = message{fmt.Sprintf("rollout stopped at %s, %d of %d are done: %s", label(r.running), r.done, r.all, oneLine(result.Err.Error())), true}
		m.rollout = nil
		return nil
	}
	r.done++
	return m.next()
}
