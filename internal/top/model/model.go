// Package model is the screen of hinit top without a terminal. Its inputs are the status, the usage of processes and the keys. Its
// outputs are frames and orders.
//
// The same inputs make the same frames: it reads no clock, no file and no socket, and the inputs have the time. Text of a service, a
// profile or a log is escaped before it is in a frame. One goroutine may use a Model; the package starts none.
package model

import (
	"strings"
	"time"

	"hinit/client"
	"hinit/internal/top/frame"
)

// Silence is how long a host may send no line of its status before it counts as not answering.
const Silence = 2*client.WatchBeat + time.Second

// Usage is the total use of a service's processes.
type Usage struct {
	CPU       float64 // in processors: 1 is one whole processor
	Memory    uint64  // resident bytes; shared memory counts in each process
	Processes int
}

// Process is one process of a service, in the order of its tree.
type Process struct {
	PID, Depth int
	Memory     uint64
	Command    string // unescaped
}

// Inside has the details of a service that are read from its processes.
type Inside struct {
	ID
	Processes   []Process
	Environment []string // NAME=value, without secrets
	Missing     string   // reason for which there are none
}

// ID identifies a service by its name and the index of its host in the list of [New].
type ID struct {
	Host int
	Name string
}

// Service is a service of a host.
type Service struct {
	*client.Service
	Host int
}

// ID returns the identity of the service.
func (s Service) ID() ID { return ID{s.Host, s.Name} }

// The verbs of orders that package client does not have.
const (
	VerbSignal client.Verb = "signal"
	VerbShell  client.Verb = "shell"
	VerbSave   client.Verb = "save" // write the lines of [Model.LogText] to the file that Word names
)

// Order is a command to a service that the user has confirmed.
type Order struct {
	Verb client.Verb
	ID
	Word string // name of a signal, or the path of a file
}

// Result says how an order ended.
type Result struct {
	Order
	Err error // nil on success
}

// Wants lists the data that the screen shows now and needs from its sources.
type Wants struct {
	Log    Log
	Inside ID  // service whose processes and environment are shown, the zero value for none
	PID    int // its main process
	Events bool
}

// Log identifies the lines of a log.
type Log struct {
	ID                    // zero value for no log
	File        string    // path of the current log file, from hinit
	From, Until time.Time // times of the earlier run; zero to follow the log
}

// paneKind is the content of the pane below the table.
type paneKind int

const (
	noPane paneKind = iota
	logPane
	eventPane
	detailPane
)

// prompt says how the next key is used.
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
	services      []Service // of all hosts
	usage         map[ID]*record
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

// message is a message on the last line.
type message struct {
	text string
	bad  bool
}

// New returns the model of an empty screen. theme is an index of [frame.Themes]. hosts are the names of the inits; a single name is
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

// Tick sets the present time.
func (m *Model) Tick(now time.Time) { m.now = now }

// Over reports whether the user has asked to quit.
func (m *Model) Over() bool { return m.over }

// Theme returns the selected theme.
func (m *Model) Theme() frame.Theme { return frame.Themes[m.theme] }

// Event adds an event.
func (m *Model) Event(host int, e client.Event) { m.pane.event(hostEvent{e, host}) }

// Log adds lines of a log, without line ends and unescaped. No lines mean that the log is read from its beginning again.
func (m *Model) Log(of Log, lines []LogLine) { m.pane.log(of, lines) }

// Inside sets the details of a service.
func (m *Model) Inside(in Inside) { m.pane.inside = in }

// Ended records the end of an order, and returns the orders that follow.
func (m *Model) Ended(r Result) []Order {
	if m.rollout != nil && m.rollout.running == r.ID {
		return m.advanceRollout(r)
	}
	m.message = message{string(r.Verb) + " " + m.label(r.ID) + ": done", false}
	if r.Err != nil {
		m.message = message{oneLine(r.Err.Error()), true}
	}
	return nil
}

// Wants returns the data that the screen needs now.
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

// runBefore returns the times of the run that ended last. They are zero if no run has ended.
func runBefore(s Service) (from, until time.Time) {
	if s.LastExit == nil {
		return from, until
	}
	const early, late = time.Second, 100 * time.Millisecond // its last lines are read after its end, and a new run writes little so soon
	lasted := time.Duration(s.LastExit.UptimeSeconds * float64(time.Second))
	ended := s.LastExit.At.UTC()
	return ended.Add(-lasted - early), ended.Add(late)
}

func oneLine(text string) string { return strings.ReplaceAll(text, "\n", "; ") }
