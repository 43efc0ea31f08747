package web

import (
	"bytes"
	"context"
	"encoding/json"
	"html/template"
	"maps"
	"slices"
	"sync"
	"time"

	"hinit/client"
	"hinit/internal/control/show"
	"hinit/internal/guard"
	"hinit/internal/pause"
)

const (
	mostEvents = 4096                  // events that the timeline keeps
	mostRows   = 5000                  // services that the page shows
	retry      = time.Second           // between two attempts to connect to hinit
	silence    = 6 * time.Second       // without a line of the status, after which the stream is opened again
	unheard    = 3 * time.Second       // without a line of the status, after which the page calls it old; more than client.WatchBeat
	gather     = 50 * time.Millisecond // events within this time are handled together
	fresh      = time.Second           // longest age of an answer that another request received
	lookTime   = 5 * time.Second       // limit for the status
	keepWatch  = 10 * time.Second      // how long the hub follows the status after the last reader has left
	mostShared = 16                    // encoded answers that are kept
	mostAtOnce = 50                    // services in one request by name
)

// hub holds the state that all readers share: the newest status, its rows as HTML, and the last events.
type hub struct {
	hinit Hinit
	look  time.Duration // limit for the status
	view  func(s *client.Service, used usedView) rowView
	row   func(w *bytes.Buffer, v *rowView) error
	head  func(w *bytes.Buffer, st *client.Status, fault string, used measured) error

	meter  meter
	asking sync.Mutex // held while a request asks for the status
	shared struct {   // encoded answers that several readers get
		sync.Mutex        // held while an answer is encoded
		of         uint64 // version that the answers belong to
		from       map[uint64]string
	}

	mu      sync.Mutex
	version uint64
	shown
	events  []client.Event
	changed chan struct{} // closed at the next version
	readers int
	wanted  chan struct{} // signals that a reader has come
	idle    time.Time     // when the last reader left
}

// shown is the content of the page with its versions.
type shown struct {
	status  client.Status
	used    measured
	at      time.Time // time of the status
	fault   string    // reason for which hinit does not answer
	rows    map[string]*row
	order   []string
	ordered uint64 // version of the order
	top     template.HTML
	topped  uint64 // version of top
}

// row is the row of a service on the page.
type row struct {
	view    rowView
	html    template.HTML
	version uint64
}

func newHub(h Hinit, proc func(client.Init) string) *hub {
	// The versions of an older process are lower than all versions of this one.
	begin := uint64(time.Now().UnixMilli()) * 1000
	return &hub{hinit: h, meter: meter{proc: proc}, look: lookTime, version: begin, shown: shown{rows: make(map[string]*row)}, changed: make(chan struct{}), wanted: make(chan struct{}, 1)}
}

// run follows hinit until ctx ends: its events always, its status only while there are readers.
func (h *hub) run(ctx context.Context) {
	measure := func(ctx context.Context) {
		for ctx.Err() == nil {
			_, _ = h.current(ctx) // readers see the fault
			pause.For(ctx, pointEvery)
		}
	}
	var wg sync.WaitGroup
	for doing, do := range map[string]func(context.Context){"measure the last hour": measure, "follow the events": h.followEvents, "follow the status": h.followStatus} {
		wg.Add(1)
		guard.Go(doing, func() {
			defer wg.Done()
			do(ctx)
		})
	}
	wg.Wait()
}

func (h *hub) followStatus(ctx context.Context) {
	for ctx.Err() == nil {
		if !h.read() {
			select {
			case <-h.wanted:
			case <-ctx.Done():
			}
			continue
		}
		watch, cancel := context.WithCancel(ctx)
		alarm := time.AfterFunc(silence, cancel)
		old := time.AfterFunc(unheard, func() { h.set(client.Status{}, errSilent) })
		st := client.Status{}
		err := h.hinit.Watch(watch, func(c client.StatusChange) error {
			alarm.Reset(silence)
			old.Reset(unheard)
			if !c.Whole && st.Version == 0 {
				return errLie
			}
			c.Apply(&st)
			h.set(st, nil)
			if !h.read() {
				return errIdle
			}
			return nil
		})
		alarm.Stop()
		old.Stop()
		cancel()
		if err != nil && err != errIdle && ctx.Err() == nil { //nolint:errorlint // it is returned unwrapped
			h.set(client.Status{}, err)
		}
		pause.For(ctx, retry/4)
	}
}

// read reports whether there are readers, or were a moment ago.
func (h *hub) read() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.readers > 0 || time.Since(h.idle) < keepWatch
}

// join counts a reader until leave is called.
func (h *hub) join() (leave func()) {
	h.mu.Lock()
	h.readers++
	h.mu.Unlock()
	select {
	case h.wanted <- struct{}{}:
	default:
	}
	return func() {
		h.mu.Lock()
		h.readers--
		h.idle = time.Now()
		h.mu.Unlock()
	}
}

// followEvents stores events, and requests the status of the services that they concern at once.
func (h *hub) followEvents(ctx context.Context) {
	names := make(chan string, mostAtOnce-1)
	guard.Go("ask for what has changed", func() { h.askFor(ctx, names) })
	var last uint64
	for ctx.Err() == nil {
		err := h.hinit.Events(ctx, client.EventOptions{Since: last, Follow: true}, func(e client.Event) error {
			if e.Lost > 0 {
				return nil
			}
			if e.Seq <= last {
				last = 0 // hinit has started again
			}
			last = e.Seq
			h.mu.Lock()
			h.events = append(h.events, e)
			if len(h.events) > 2*mostEvents {
				h.events = slices.Clone(h.events[len(h.events)-mostEvents:])
			}
			h.mu.Unlock()
			if e.Service != "" {
				select {
				case names <- e.Service:
				default: // the followed status has the change within a second
				}
			}
			return nil
		})
		if err != nil {
			last = 0
			h.mu.Lock()
			if h.events != nil {
				h.events = h.events[:0:0] // it sends its whole history again
			}
			h.mu.Unlock()
		}
		pause.For(ctx, retry)
	}
}

// askFor updates services after their events.
func (h *hub) askFor(ctx context.Context, names <-chan string) {
	for {
		set := make(map[string]bool)
		select {
		case name := <-names:
			set[name] = true
		case <-ctx.Done():
			return
		}
		pause.For(ctx, gather)
		for range len(names) { // no other goroutine receives
			set[<-names] = true
		}
		h.mu.Lock()
		useful := h.readers > 0 && h.status.Version != 0
		var list []string
		for name := range set {
			if h.rows[name] != nil {
				list = append(list, name)
			}
		}
		h.mu.Unlock()
		if !useful || len(list) == 0 {
			continue
		}
		look, cancel := context.WithTimeout(ctx, h.look)
		st, err := h.hinit.Status(look, list...)
		cancel()
		if err == nil && st.Version == client.StatusVersion {
			h.mu.Lock()
			now := h.status
			h.mu.Unlock()
			client.StatusChange{Init: st.Init, Services: st.Services}.Apply(&now)
			h.set(now, nil)
		}
	}
}

// current returns the newest status. It asks hinit for it if no reader follows it.
func (h *hub) current(ctx context.Context) (client.Status, error) {
	recent := func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return time.Since(h.at) < fresh || h.readers > 0 && time.Since(h.at) < silence
	}
	if !recent() {
		h.asking.Lock()
		if !recent() {
			look, cancel := context.WithTimeout(context.WithoutCancel(ctx), h.look)
			st, err := h.hinit.Status(look)
			cancel()
			if err == nil && st.Version != client.StatusVersion {
				err = errLie
			}
			h.set(st, err)
		}
		h.asking.Unlock()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.fault != "" {
		return h.status, faultError(h.fault)
	}
	return h.status, nil
}

// last returns the last known status.
func (h *hub) last() client.Status {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.status
}

// set stores a new status. After an error the old status stays, and the page says that it is old.
func (h *hub) set(st client.Status, failed error) {
	var used measured
	if failed == nil {
		used = h.meter.measure(&st)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	next := h.version + 1
	news := false
	h.at, h.fault = time.Now(), ""
	if failed != nil {
		h.fault = failed.Error()
		st, used = h.status, h.used
	}
	st.Services = distinct(st.Services)
	h.status, h.used = st, used
	order := make([]string, len(st.Services))
	for i := range st.Services {
		s := &st.Services[i]
		order[i] = s.Name
		view := h.view(s, used.view(s.Name))
		if old := h.rows[s.Name]; old == nil || old.view != view {
			h.rows[s.Name], news = &row{view, render(func(w *bytes.Buffer) error { return h.row(w, &view) }), next}, true
		}
	}
	if !slices.Equal(order, h.order) {
		h.order, h.ordered, news = order, next, true
		there := make(map[string]bool, len(order))
		for _, name := range order {
			there[name] = true
		}
		maps.DeleteFunc(h.rows, func(name string, _ *row) bool { return !there[name] })
	}
	if top := render(func(w *bytes.Buffer) error { return h.head(w, &st, h.fault, used) }); top != h.top {
		h.top, h.topped, news = top, next, true
	}
	if news {
		h.version = next
		close(h.changed)
		h.changed = make(chan struct{})
	}
}

// render returns the output of a template, or "" if the template fails.
func render(fill func(w *bytes.Buffer) error) template.HTML {
	var w bytes.Buffer
	if fill(&w) != nil {
		return ""
	}
	return template.HTML(w.String()) //nolint:gosec // a template has escaped it
}

// distinct returns at most mostRows services with valid names, each name once.
func distinct(list []client.Service) []client.Service {
	out, seen := make([]client.Service, 0, min(len(list), mostRows)), make(map[string]bool)
	for i := range list {
		if name := list[i].Name; name != "" && show.Line(name) == name && !seen[name] && len(out) < mostRows {
			seen[name] = true
			out = append(out, list[i])
		}
	}
	return out
}

// delta has the changes since a reader's version.
type delta struct {
	Version uint64                   `json:"version"`
	Head    template.HTML            `json:"head,omitempty"`
	Rows    map[string]template.HTML `json:"rows,omitempty"`
	Order   []string                 `json:"order,omitempty"`
}

// since returns the changes since a version, and a channel that is closed at the next change. For a version that is higher than the
// hub's, it returns everything. With only, it returns the changes of that service alone.
func (h *hub) since(version uint64, only string) (d delta, more <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if version > h.version {
		version = 0
	}
	d = delta{Version: h.version}
	if only != "" {
		if r := h.rows[only]; r != nil && r.version > version {
			d.Rows = map[string]template.HTML{only: r.html}
		}
		return d, h.changed
	}
	if h.topped > version {
		d.Head = h.top
	}
	if h.ordered > version {
		d.Order = h.order
	}
	for name, r := range h.rows {
		if r.version > version {
			if d.Rows == nil {
				d.Rows = make(map[string]template.HTML)
			}
			d.Rows[name] = r.html
		}
	}
	return d, h.changed
}

// encoded returns the result of since as JSON, or "" without changes. Readers with the same version share it.
func (h *hub) encoded(version uint64, only string) (text string, now uint64, more <-chan struct{}) {
	if only != "" {
		d, more := h.since(version, only)
		if d.Rows == nil {
			return "", d.Version, more
		}
		data, _ := json.Marshal(d) // never fails for strings
		return string(data), d.Version, more
	}
	h.shared.Lock()
	defer h.shared.Unlock()
	d, more := h.since(version, "")
	if d.Head == "" && d.Order == nil && d.Rows == nil {
		return "", d.Version, more
	}
	if h.shared.of != d.Version {
		h.shared.of, h.shared.from = d.Version, make(map[uint64]string)
	}
	text, known := h.shared.from[version]
	if !known {
		data, _ := json.Marshal(d)
		if text = string(data); len(h.shared.from) < mostShared {
			h.shared.from[version] = text
		}
	}
	return text, d.Version, more
}

// all returns the rows in hinit's order, the head above them, and their version.
func (h *hub) all() (list []row, top template.HTML, version uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, name := range h.order {
		list = append(list, *h.rows[name])
	}
	return list, h.top, h.version
}

// uses returns the use of a service.
func (h *hub) uses(name string) usedView {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.used.view(name)
}

// history returns the stored events, oldest first.
func (h *hub) history() []client.Event {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.events)
}
