// Package model is the screen of `hinit top` without a terminal. Its inputs are the status, the usage of processes and the keys;
// its outputs are frames and orders.
//
// The same inputs always give the same frames. The package reads no clock, file or socket: the caller passes the time. It escapes
// the text of a service, a profile or a log before the text becomes part of a frame. Only one goroutine may use a Model; the
// package starts none.
package model

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/samber/lo"

	"hinit/client"
	"hinit/internal/control/show"
	"hinit/internal/procusage"
	"hinit/internal/top/frame"
)

// MaxSilence is the time without a line of the status after which the screen shows a host as not answering. A working host
// sends lines more often.
const MaxSilence = 2*client.WatchInterval + time.Second

// Process is a process of a service. Depth is the number of its ancestors in the same list, for the indentation on the screen.
type Process struct {
	PID, Depth int
	Memory     uint64
	Command    string // command line, not escaped
}

// ProcessDetails contains the processes of a service for the detail pane.
type ProcessDetails struct {
	ID
	Processes   []Process
	Environment []string // NAME=value, without secrets
	Missing     string   // reason why details are missing; "" if none are
}

// ID identifies a service by its name and its host. Host is an index into the list of hosts that was passed to [New].
type ID struct {
	Host int
	Name string
}

// Service is a service with its host. Host is an index into the list of hosts that was passed to [New].
type Service struct {
	*client.Service
	Host int
}

// ID returns the identity of the service.
func (s Service) ID() ID { return ID{s.Host, s.Name} }

// Verbs of orders that exist only on the screen. Package client defines the others.
const (
	VerbSignal client.Verb = "signal"
	VerbShell  client.Verb = "shell"
	VerbSave   client.Verb = "save" // write the lines of [Model.LogText] to the file with the path Word
)

// Order is an order for a service that the user has confirmed.
type Order struct {
	Verb client.Verb
	ID
	Word string // name of a signal, or path of a file
}

// DataNeeds describes the data that the screen needs now, so that the caller reads nothing else.
type DataNeeds struct {
	Log       Log
	DetailsOf ID  // service whose processes and environment the screen shows; zero for none
	PID       int // pid of the main process of that service
	Events    bool
}

// Log identifies a log, or the part of a log that a single run has written.
type Log struct {
	ID                    // service of the log; zero for no log
	File        string    // path of the current log file, from hinit
	From, Until time.Time // start and end of an earlier run; zero: follow the newest lines
}

// paneKind is the content of the pane below the table.
type paneKind int

const (
	noPane paneKind = iota
	logPane
	eventPane
	detailPane
)

// promptKind is the question on the screen. It determines the effect of the next key.
type promptKind int

const (
	noPrompt promptKind = iota
	filterPrompt
	searchPrompt
	orderPrompt
	signalPrompt
	filePrompt
	helpPrompt
)

// Model is the state of the screen. Make it with [New].
type Model struct {
	width, height int
	now           time.Time
	hosts         []host
	services      []Service // services of all hosts
	usage         map[ID]*usageHistory
	table         table
	pane          pane
	prompt        promptKind
	pending       pendingOrder // order that waits for the user's confirmation
	rollout       *rollout
	message       message
	typedWord     string // word that the user is typing: a signal or a path
	theme         int
	helpOffset    int // index of the first line of the help on the screen
	quitting      bool
}

// message is a text for the last line of the screen. isError marks the report of a failure.
type message struct {
	text    string
	isError bool
}

// New returns an empty screen. theme is an index into [frame.Themes]. hosts are the names of the inits; if only one is given, the
// screen doesn't show its name.
func New(theme int, hosts ...string) *Model {
	m := &Model{width: 80, height: 24, usage: make(map[ID]*usageHistory), theme: theme}
	m.table.marked, m.table.folded = make(map[ID]bool), make(map[string]bool)
	m.hosts = lo.Map(hosts, func(name string, _ int) host { return host{name: name} })
	return m
}

// Resize sets the size of the screen.
func (m *Model) Resize(width, height int) { m.width, m.height = max(width, 1), max(height, 1) }

// Tick sets the time of the model.
func (m *Model) Tick(now time.Time) { m.now = now }

// IsQuitting reports whether the user has asked to quit.
func (m *Model) IsQuitting() bool { return m.quitting }

// Theme returns the selected theme.
func (m *Model) Theme() frame.Theme { return frame.Themes[m.theme] }

// SetProcessDetails stores the details of a service for the detail pane.
func (m *Model) SetProcessDetails(in ProcessDetails) { m.pane.details = in }

// OrderEnded records the result of an order. If the order belongs to a rollout, it returns the next orders to carry out.
func (m *Model) OrderEnded(o Order, err error) []Order {
	if m.rollout != nil && m.rollout.running == o.ID {
		return m.advanceRollout(err)
	}
	m.message = message{string(o.Verb) + " " + m.serviceLabel(o.ID) + ": done", false}
	if err != nil {
		m.message = message{oneLine(err.Error()), true}
	}
	return nil
}

// DataNeeds returns which data the screen needs now.
func (m *Model) DataNeeds() (w DataNeeds) {
	w.Events = m.pane.kind == eventPane
	s, is := m.serviceAtCursor()
	if !is {
		return w
	}
	switch m.pane.kind {
	case logPane:
		w.Log = Log{ID: s.ID(), File: s.Log}
		if m.pane.showsLastRun {
			w.Log.From, w.Log.Until = lastRun(s)
		}
	case detailPane:
		w.DetailsOf, w.PID = s.ID(), s.PID
	case noPane, eventPane:
	}
	return w
}

// lastRun returns the start and the end of the last ended run of a service; zero times without an ended run.
func lastRun(s Service) (from, until time.Time) {
	if s.LastExit == nil {
		return from, until
	}
	// The log stamps the last lines of a run with a time after the end of the run. By then, a new run has written only few
	// lines.
	const early, late = time.Second, 100 * time.Millisecond
	lasted := time.Duration(s.LastExit.UptimeSeconds * float64(time.Second))
	ended := s.LastExit.EndedAt.UTC()
	return ended.Add(-lasted - early), ended.Add(late)
}

func oneLine(text string) string { return strings.ReplaceAll(text, "\n", "; ") }

// host is an init whose services the screen shows.
type host struct {
	name       string
	status     client.Status
	lastLineAt time.Time // when the last line of the status arrived; zero before the first
	lostAt     time.Time // when the host stopped answering; zero while it answers
	lostReason string
}

// ApplyChange applies one line of the status stream of a host.
func (m *Model) ApplyChange(of int, c client.StatusChange, now time.Time) {
	m.now = now
	h := &m.hosts[of]
	c.Apply(&h.status)
	h.lastLineAt, h.lostAt, h.lostReason = now, time.Time{}, ""
	m.services = m.services[:0]
	for i := range m.hosts {
		for j := range m.hosts[i].status.Services {
			m.services = append(m.services, Service{&m.hosts[i].status.Services[j], i})
		}
	}
	if c.IsComplete { // some services may have been removed
		there := lo.KeyBy(m.services, Service.ID)
		maps.DeleteFunc(m.usage, func(id ID, _ *usageHistory) bool { return !lo.HasKey(there, id) })
		maps.DeleteFunc(m.table.marked, func(id ID, _ bool) bool { return !lo.HasKey(there, id) })
	}
	m.rebuildRows()
}

// HostLost records that a host does not answer; why is the reason.
func (m *Model) HostLost(of int, why string, now time.Time) {
	m.now = now
	h := &m.hosts[of]
	if h.lostAt.IsZero() {
		h.lostAt = now
	}
	h.lostReason = why
}

// SetUsage stores the measured usage of the services on a host, by name. A nil usage means that this program can't see the
// host's processes.
func (m *Model) SetUsage(of int, usage map[string]procusage.Usage, now time.Time) {
	m.now = now
	for _, s := range m.services {
		if s.Host != of {
			continue
		}
		u, is := usage[s.Name]
		r := m.usage[s.ID()]
		if r == nil && !is {
			continue
		}
		r = cmp.Or(r, new(usageHistory))
		r.add(u, is)
		m.usage[s.ID()] = r
	}
	if m.table.sort == byCPU || m.table.sort == byMemory {
		m.rebuildRows()
	}
}

// hostSilence reports whether a host does not answer. since is the time at which its silence began, and why is the reason, or
// "" if unknown.
func (m *Model) hostSilence(of int) (since time.Time, why string, is bool) {
	switch h := &m.hosts[of]; {
	case !h.lostAt.IsZero():
		return h.lostAt, h.lostReason, true
	case !h.lastLineAt.IsZero() && m.now.Sub(h.lastLineAt) > MaxSilence:
		return h.lastLineAt, "", true
	}
	return time.Time{}, "", false
}

func (m *Model) anyAnswered() bool {
	return slices.ContainsFunc(m.hosts, func(h host) bool { return !h.lastLineAt.IsZero() })
}

// serviceLabel returns the name of a service on the screen. With several hosts, the host's name precedes it.
func (m *Model) serviceLabel(id ID) string {
	if len(m.hosts) > 1 {
		return show.EscapeName(m.hosts[id.Host].name) + ":" + show.EscapeName(id.Name)
	}
	return show.EscapeName(id.Name)
}

// hostStatusLine returns a line about a host. is reports whether the line is needed, because the host does not answer, stops,
// boots, waits for its lease or has a warning.
func (m *Model) hostStatusLine(of int) (l frame.Line, is bool) {
	h := &m.hosts[of]
	if len(m.hosts) > 1 {
		l.Add(frame.Title, show.EscapeName(h.name)+": ")
	}
	in := &h.status.Init
	since, why, silent := m.hostSilence(of)
	switch {
	case silent:
		text := fmt.Sprintf("not answering since %s (%s)", since.Local().Format("15:04:05"), formatAge(m.now.Sub(since)))
		if why != "" {
			text += ": " + show.EscapeLine(oneLine(why))
		}
		l.Add(frame.Bad, text)
	case in.Stopping:
		l.Add(frame.Bad, "the container is stopping")
	case in.Booting:
		l.Add(frame.Changing, "booting"+show.HookText(in.Hook))
	case in.Lease != nil && in.Lease.State == client.LeaseWaiting:
		l.Add(frame.Changing, show.EscapeLine(in.Lease.Detail))
	case len(in.Warnings) > 0 && m.height >= 20:
		more := ""
		if n := len(in.Warnings); n > 1 {
			more = fmt.Sprintf(" (and %d more: hinit status)", n-1)
		}
		l.Add(frame.Changing, "warning"+more+": "+show.EscapeLine(in.Warnings[0]))
	default:
		return l, false
	}
	return l, true
}

// hostLines returns the first lines of the screen: a summary, and the status lines of hosts. Silent hosts come first, because a
// short terminal cuts the rest.
func (m *Model) hostLines() (out []frame.Line) {
	var head frame.Line
	head.Add(frame.Title, "hinit top ")
	if m.anyAnswered() {
		m.addSummary(&head)
	} else {
		head.Add(frame.Dim, "asking hinit for its status")
	}
	out = append(out, head)
	most := max(m.height/4, 1)
	for _, wanted := range []bool{true, false} {
		for i := range m.hosts {
			if _, _, silent := m.hostSilence(i); silent != wanted || len(out) > most {
				continue
			}
			if l, is := m.hostStatusLine(i); is {
				out = append(out, l)
			}
		}
	}
	return out
}

// addSummary appends to l the number of services in each grade, and their total usage. Services in trouble come first, so that
// even the narrowest screen shows them.
func (m *Model) addSummary(l *frame.Line) {
	var count [numGrades]int
	var all procusage.Usage
	measured := false
	for _, s := range m.services {
		count[m.gradeOf(s)]++
		if r := m.usage[s.ID()]; r != nil && r.lastKnown {
			measured = true
			all.CPU += r.last.CPU
			all.Memory += r.last.Memory
			all.Processes += r.last.Processes
		}
	}
	add := func(role frame.Role, count int, word string) {
		if count > 0 {
			l.Add(role, fmt.Sprintf("%d %s ", count, word))
		}
	}
	add(frame.Bad, count[gradeTrouble], "in trouble")
	add(frame.Bad, count[gradeImpaired], "ailing")
	add(frame.Bad, count[gradeUnknown], "unknown")
	add(frame.Changing, count[gradeConfigChanged], "drifted")
	add(frame.Changing, count[gradeChanging], "on the way")
	l.Add(frame.Good, fmt.Sprintf("%d of %d well ", count[gradeHealthy]+count[gradeConfigChanged], len(m.services)))
	add(frame.Dim, count[gradeOff], "down")
	if measured {
		l.Add(frame.Plain, fmt.Sprintf("cpu %s mem %s proc %d ", formatPercent(all.CPU), formatSize(all.Memory), all.Processes))
	}
	if len(m.hosts) > 1 {
		l.Add(frame.Dim, fmt.Sprintf("%d hosts", len(m.hosts)))
		return
	}
	in := &m.hosts[0].status.Init
	l.Add(frame.Dim, "up "+formatAge(m.now.Sub(m.hosts[0].lastLineAt)+time.Duration(in.UptimeSeconds*float64(time.Second)))+" "+show.EscapeLine(in.Home))
}
