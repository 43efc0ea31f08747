// Package model implements the screen of hinit top without a terminal. Its inputs are the status, the usage of processes and the
// keys. Its outputs are frames and orders.
//
// The same inputs always produce the same frames. The package reads no clock, file or socket: the caller passes the time with the
// inputs. Text of a service, a profile or a log is escaped before it is put into a frame. Only one goroutine may use a Model; the
// package starts none.
package model

import (
	"strings"
	"time"

	"hinit/client"
	"hinit/internal/top/frame"
)

// Silence is the time without a status line after which a host is shown as not answering. A working host sends lines more often.
const Silence = 2*client.WatchInterval + time.Second

// Process is one process of a service. Depth is the number of its ancestors in the list.
type Process struct {
	PID, Depth int
	Memory     uint64
	Command    string // command line, not escaped
}

// ProcessDetails holds the details that are read from a service's processes, for the detail pane.
type ProcessDetails struct {
	ID
	Processes   []Process
	Environment []string // NAME=value, without secrets
	Missing     string   // reason why details are missing; "" if none are
}

// ID identifies a service by its name and host. Host is an index of the list that was passed to [New].
type ID struct {
	Host int
	Name string
}

// Service is a service and its host, an index of the list that was passed to [New].
type Service struct {
	*client.Service
	Host int
}

// ID returns the identity of the service.
func (s Service) ID() ID { return ID{s.Host, s.Name} }

// Verbs of orders that only the screen has. Package client defines all other verbs.
const (
	VerbSignal client.Verb = "signal"
	VerbShell  client.Verb = "shell"
	VerbSave   client.Verb = "save" // write the lines of [Model.LogText] to the file with the path Word
)

// Order is a command to a service that the user has confirmed.
type Order struct {
	Verb client.Verb
	ID
	Word string // name of a signal, or the path of a file
}

// DataNeeds lists the data that the screen needs from its sources now.
type DataNeeds struct {
	Log    Log
	Inside ID  // service whose processes and environment are shown; zero for none
	PID    int // PID of the main process of the service in Inside
	Events bool
}

// Log identifies a log, or the part of it that a single run has written.
type Log struct {
	ID                    // service of the log; zero for no log
	File        string    // path of the current log file, from hinit
	From, Until time.Time // start and end of an earlier run; zero to follow the log
}

// paneKind is the content of the pane below the table.
type paneKind int

const (
	noPane paneKind = iota
	logPane
	eventPane
	detailPane
)

// prompt is the question that the user is being asked. It decides how the next key is used.
type prompt int

const (
	nothing prompt = iota
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
	services      []Service // services of all hosts
	usage         map[ID]*usageHistory
	table         table
	pane          pane
	asking        prompt
	pending       pending // order that waits for a confirmation
	rollout       *rollout
	message       message
	word          string // word that the user types: a signal or a path
	theme         int
	helpTop       int // first line of the help on the screen
	over          bool
}

// message is the text on the last line of the screen. If bad is set, the text reports a failure.
type message struct {
	text string
	bad  bool
}

// New returns the model of an empty screen. theme is an index of [frame.Themes]. hosts are the names of the inits. The name of a
// single init is not shown.
func New(theme int, hosts ...string) *Model {
	m := &Model{width: 80, height: 24, usage: make(map[ID]*usageHistory), theme: theme}
	m.table.marks, m.table.folded = make(map[ID]bool), make(map[string]bool)
	for _, name := range hosts {
		m.hosts = append(m.hosts, host{name: name})
	}
	return m
}

// Resize sets the size of the screen.
func (m *Model) Resize(width, height int) { m.width, m.height = max(width, 1), max(height, 1) }

// Tick sets the model's current time.
func (m *Model) Tick(now time.Time) { m.now = now }

// IsOver reports whether the user has asked to quit.
func (m *Model) IsOver() bool { return m.over }

// Theme returns the selected theme.
func (m *Model) Theme() frame.Theme { return frame.Themes[m.theme] }

// SetProcessDetails sets the details of a service, for the detail pane.
func (m *Model) SetProcessDetails(in ProcessDetails) { m.pane.inside = in }

// OrderEnded records the end of an order; err is nil on success. If the order is part of a rollout, OrderEnded returns the next
// orders.
func (m *Model) OrderEnded(o Order, err error) []Order {
	if m.rollout != nil && m.rollout.running == o.ID {
		return m.advanceRollout(err)
	}
	m.message = message{string(o.Verb) + " " + m.label(o.ID) + ": done", false}
	if err != nil {
		m.message = message{oneLine(err.Error()), true}
	}
	return nil
}

// DataNeeds returns the data that the screen needs from its sources now.
func (m *Model) DataNeeds() (w DataNeeds) {
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

// runBefore returns the start and the end of the run that ended last. Both are zero if no run has ended.
func runBefore(s Service) (from, until time.Time) {
	if s.LastExit == nil {
		return from, until
	}
	// The last lines get their time only after the end of the run. A new run has written few lines by then.
	const early, late = time.Second, 100 * time.Millisecond
	lasted := time.Duration(s.LastExit.UptimeSeconds * float64(time.Second))
	ended := s.LastExit.At.UTC()
	return ended.Add(-lasted - early), ended.Add(late)
}

func oneLine(text string) string { return strings.ReplaceAll(text, "\n", "; ") }
