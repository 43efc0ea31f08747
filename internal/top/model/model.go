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

// Inside is what a process sees that shares hinit's processes.
type Inside struct {
	ID
	Processes   []Process
	Environment []string // NAME=value, without secrets
	Missing     string   // why there is none
}

// ID names a service: its name, and the place of its host in the list of [New].
type ID struct {
	Host int
	Name string
}

// Service is a service of a host.
type Service struct {
	*client.Service
	Host int
}

// ID returns the name of the service.
func (s Service) ID() ID { return ID{s.Host, s.Name} }

// The verbs of orders besides the ones of package client.
const (
	VerbSignal client.Verb = "signal"
	VerbShell  client.Verb = "shell"
	VerbSave   client.Verb = "save" // write the lines of [Model.LogText] to the file that Word names
)

// Order is a command to a service that somebody has confirmed.
type Order struct {
	Verb client.Verb
	ID
	Word string // of a signal, or the path of a file
}

// Result is how an order ended.
type Result struct {
	Order
	Err error // nil when it did what it says
}

// Wants is what the screen shows now, and needs from outside.
type Wants struct {
	Log    Log
	Inside ID  // service whose processes and environment are shown, the zero value for none
	PID    int // its main process
	Events bool
}

// Log says which lines are wanted.
type Log struct {
	ID                    // the zero value for none
	File        string    // current file of it, as hinit says
	From, Until time.Time // of the run before; zero where the log is followed
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
	signalAsked
	fileAsked
	helpShown
)

// Model is the state of the screen. Make it with New.
type Model struct {
	width, height int
	now           time.Time
	hosts         []host
	services      []Service // of all hosts
	usage         map[ID]*record
	table         table
	pane          pane
	asking        asking
	pending       pending // the order that waits for a yes
	rollout       *rollout
	message       message
	word          string // that is typed: a signal or a path
	theme         int
	helpTop       int // its first line on the screen
	over          bool
}

// message is the last line's news.
type message struct {
	text string
	bad  bool
}

// New returns the model of an empty screen. theme is one of [frame.Themes]; hosts are the names of the inits, of which a single one is
// not shown.
func New(theme int, hosts ...string) *Model {
	m := &Model{width: 80, height: 24, usage: make(map[ID]*record), theme: theme}
	m.table.marks, m.table.folded = make(map[ID]bool), make(map[string]bool)
	for _, name := range hosts {
		m.hosts = append(m.hosts, host{name: name})
	}
	return m
}

// Resize sets the size of the screen.
func (m *Model) Resize(width, height int) { m.width, m.height = max(width, 1), max(height, 1) }

// Tick says what time it is.
func (m *Model) Tick(now time.Time) { m.now = now }

// Over reports whether somebody has asked to end.
func (m *Model) Over() bool { return m.over }

// Theme returns the theme that was chosen.
func (m *Model) Theme() frame.Theme { return frame.Themes[m.theme] }

// Event takes one event.
func (m *Model) Event(host int, e client.Event) { m.pane.event(hostEvent{e, host}) }

// Log takes lines of the followed service, without their ends; none when it is read anew. They may be anything.
func (m *Model) Log(of Log, lines []LogLine) { m.pane.log(of, lines) }

// Inside takes what is known of the processes of a service.
func (m *Model) Inside(in Inside) { m.pane.inside = in }

// Ended takes the end of an order, and returns what is to be done next.
func (m *Model) Ended(r Result) []Order {
	if m.rollout != nil && m.rollout.running == r.ID {
		return m.rolled(r)
	}
	m.message = message{string(r.Verb) + " " + m.label(r.ID) + ": done", false}
	if r.Err != nil {
		m.message = message{oneLine(r.Err.Error()), true}
	}
	return nil
}

// Wants returns what the screen needs from outside.
func (m *Model) Wants() (w Wants) {
	w.Events = m.pane.kind == eventPane
	s, is := m.current()
	if !is {
		return w
	}
	switch m.pane.kind {
	case logPane:
		w.Log = Log{ID: s.ID(), File: s.Log}
		if m.pane.before {
			w.Log.From, w.Log.Until = runBefore(s)
		}
	case detailPane:
		w.Inside, w.PID = s.ID(), s.PID
	case noPane, eventPane:
	}
	return w
}

// runBefore returns when the run that ended last began and ended. The zero value says that none has ended.
func runBefore(s Service) (from, until time.Time) {
	if s.LastExit == nil {
		return from, until
	}
	const early, late = time.Second, 100 * time.Millisecond // its last lines are read after its end; a run that begins at once says little by then
	lasted := time.Duration(s.LastExit.UptimeSeconds * float64(time.Second))
	ended := s.LastExit.At.UTC()
	return ended.Add(-lasted - early), ended.Add(late)
}

func oneLine(text string) string { return strings.ReplaceAll(text, "\n", "; ") }
