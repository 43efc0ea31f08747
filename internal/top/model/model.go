// Package model is the screen of hinit top without a terminal. It takes the status, the usage of processes and the keys that are
// pressed, and returns frames and orders.
//
// It promises that the same inputs make the same frames: it reads no clock, no file and no socket, and the time comes with the
// inputs. Text of a service, a profile or a log is escaped before it is in a frame. One goroutine may use a Model; the package
// starts none.
package model

import (
	"strings"
	"time"

	"hinit/client"
	"hinit/internal/top/frame"
)

// Silence is how long a status may be without a line until hinit counts as not answering.
const Silence = 2*client.WatchBeat + time.Second

// Usage is what a service's processes use.
type Usage struct {
	CPU       float64 // of one processor; 1 is all of it
	Memory    uint64  // resident bytes, each process by itself
	Processes int
}

// Process is one process of a service, in the order of its tree.
type Process struct {
	PID, Depth int
	Memory     uint64
	Command    string // it may be anything
}

// Inside is what only those see who share hinit's processes.
type Inside struct {
	Name        string // of the service
	Processes   []Process
	Environment []string // NAME=value, without secrets
	Missing     string   // why there is none
}

// Order is a command to a service that somebody has confirmed.
type Order struct {
	Verb client.Verb
	Name string
}

// Result is how an order ended.
type Result struct {
	Order
	Err error // nil when it did what it says
}

// Wants is what the screen shows now, and needs from outside.
type Wants struct {
	Log    string // service whose log is followed, "" for none
	LogDir string // current file of it, as hinit says
	Inside string // service whose processes and environment are shown
	PID    int    // its main process
	Events bool
}

// paneKind is what the pane below the table shows.
type paneKind int

const (
	noPane paneKind = iota
	logPane
	eventPane
	detailPane
)

// asking is what a key means just now.
type asking int

const (
	nothing asking = iota
	filterAsked
	searchAsked
	orderAsked
	helpShown
)

// Model is the state of the screen. Make it with New.
type Model struct {
	width, height int
	now           time.Time
	status        client.Status
	link          link
	usage         map[string]*record
	table         table
	pane          pane
	asking        asking
	pending       pending // the order that waits for a yes
	rollout       *rollout
	message       message
	theme         int
	helpTop       int // its first line on the screen
	over          bool
}

// link is how hinit answers.
type link struct {
	heard time.Time // the last line of the status; zero before the first
	lost  time.Time // when it went away, zero while it is there
	why   string
}

// message is the last line's news.
type message struct {
	text string
	bad  bool
}

// New returns the model of an empty screen. theme is one of [frame.Themes].
func New(theme int) *Model {
	return &Model{width: 80, height: 24, usage: make(map[string]*record), theme: theme, table: table{marks: make(map[string]bool)}}
}

// Resize sets the size of the screen.
func (m *Model) Resize(width, height int) { m.width, m.height = max(width, 1), max(height, 1) }

// Tick says what time it is.
func (m *Model) Tick(now time.Time) { m.now = now }

// Over reports whether somebody has asked to end.
func (m *Model) Over() bool { return m.over }

// Theme returns the theme that was chosen.
func (m *Model) Theme() frame.Theme { return frame.Themes[m.theme] }

// Change takes a line of the status.
func (m *Model) Change(c client.StatusChange, now time.Time) {
	m.now = now
	c.Apply(&m.status)
	m.link = link{heard: now}
	if c.Whole {
		there := make(map[string]bool, len(m.status.Services))
		for i := range m.status.Services {
			there[m.status.Services[i].Name] = true
		}
		for name := range m.usage {
			if !there[name] {
				delete(m.usage, name)
			}
		}
		for name := range m.table.marks {
			if !there[name] {
				delete(m.table.marks, name)
			}
		}
	}
	m.arrange()
}

// Lost says that hinit does not answer.
func (m *Model) Lost(why string, now time.Time) {
	m.now = now
	if m.link.lost.IsZero() {
		m.link.lost = now
	}
	m.link.why = why
}

// silent returns since when hinit does not answer, and why; false while it does.
func (m *Model) silent() (since time.Time, why string, is bool) {
	switch {
	case !m.link.lost.IsZero():
		return m.link.lost, m.link.why, true
	case !m.link.heard.IsZero() && m.now.Sub(m.link.heard) > Silence:
		return m.link.heard, "", true
	}
	return time.Time{}, "", false
}

// Used takes what the services use, as measured now. nil says that it can't be measured from here.
func (m *Model) Used(usage map[string]Usage, now time.Time) {
	m.now = now
	for i := range m.status.Services {
		name := m.status.Services[i].Name
		u, is := usage[name]
		r := m.usage[name]
		if r == nil {
			if !is {
				continue
			}
			r = new(record)
			m.usage[name] = r
		}
		r.add(u, is)
	}
	if m.table.sort == byCPU || m.table.sort == byMemory {
		m.arrange()
	}
}

// Event takes one event.
func (m *Model) Event(e client.Event) { m.pane.event(e) }

// Log takes lines of the followed service, without their ends; none when it is read anew. They may be anything.
func (m *Model) Log(name string, lines []LogLine) { m.pane.log(name, lines) }

// Inside takes what is known of the processes of a service.
func (m *Model) Inside(in Inside) { m.pane.inside = in }

// Ended takes the end of an order, and returns what is to be done next.
func (m *Model) Ended(r Result) []Order {
	if m.rollout != nil && m.rollout.running == r.Name {
		return m.rolled(r)
	}
	m.message = message{string(r.Verb) + " " + label(r.Name) + ": done", false}
	if r.Err != nil {
		m.message = message{oneLine(r.Err.Error()), true}
	}
	return nil
}

// Wants returns what the screen needs from outside.
func (m *Model) Wants() (w Wants) {
	s := m.current()
	if s == nil {
		return Wants{Events: m.pane.kind == eventPane}
	}
	switch m.pane.kind {
	case logPane:
		w.Log, w.LogDir = s.Name, s.Log
	case detailPane:
		w.Inside, w.PID = s.Name, s.PID
	case eventPane:
		w.Events = true
	case noPane:
	}
	return w
}

func oneLine(text string) string { return strings.ReplaceAll(text, "\n", "; ") }
