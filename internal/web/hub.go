package web

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/samber/lo"

	"hinit/client"
	"hinit/internal/control/show"
	"hinit/internal/guard"
	"hinit/internal/pause"
)

const (
	maxEvents            = 4096 // maximum number of events that the timeline keeps
	maxRows              = 5000
	retryPause           = time.Second      // pause between two attempts to connect to hinit
	reconnectAfter       = 6 * time.Second  // after this time without a line, the hub opens the stream again
	staleAfter           = 3 * time.Second  // after this time without a line, the page calls the status old; more than client.WatchInterval
	maxSharedStatusAge   = time.Second      // a fetched status serves other requests up to this age
	statusTimeLimit      = 5 * time.Second  // time limit of a request for the status
	watchAfterLastReader = 10 * time.Second // how long the hub continues to follow the status after the last reader has left
	maxVersions          = 16               // number of stored versions; also the number of changes that each version caches
)

// hub has the state that all readers of the page share: the newest status, its rows as HTML, and the last events. A reader is a
// client that follows the list of services.
type hub struct {
	hinit         HinitClient
	statusTimeout time.Duration // time limit of a request for the status
	makeRowView   func(s *client.Service, used usageView) rowView
	// returns the output of a template, or "" if the template fails
	render func(name string, data any) template.HTML

	meter    usageMeter
	fetching sync.Mutex

	mu             sync.Mutex
	status         client.Status
	usage          usageSample
	statusStoredAt time.Time // when the newest status was stored
	fault          string    // why hinit does not answer; "" if it does
	page           *version
	versions       []*version // latest versions, including page
	events         []client.Event
	changed        chan struct{} // closed when the page gets its next version
	readers        int
	readerJoined   chan struct{} // receives a value when a reader joins
	lastReaderLeft time.Time     // when the last reader left
}

// version is one state of the list of services. It is immutable, except for its cache of encoded changes.
type version struct {
	number  uint64
	summary template.HTML
	order   []string
	rows    map[string]*row // rows by service; versions share equal rows

	mu      sync.Mutex // guards encoded; held while changes are encoded
	encoded map[string]string
}

// row is the row of a service in the list.
type row struct {
	view rowView
	html template.HTML
}

func newHub(h HinitClient, proc func(client.Init) string) *hub {
	// A version number from the time is higher than all numbers of an earlier server process.
	begin := &version{number: uint64(time.Now().UnixMilli()) * 1000}
	return &hub{hinit: h, meter: usageMeter{proc: proc}, statusTimeout: statusTimeLimit, page: begin, changed: make(chan struct{}), readerJoined: make(chan struct{}, 1)}
}

// run follows hinit's events until ctx ends. It also measures the usage for the graphs. While the page has readers, it follows
// the status.
func (h *hub) run(ctx context.Context) {
	measure := func(ctx context.Context) {
		for ctx.Err() == nil {
			_, _ = h.currentStatus(ctx)
			pause.For(ctx, pointInterval)
		}
	}
	var wg sync.WaitGroup
	for doing, do := range map[string]func(context.Context){"measure the last hour": measure, "follow the events": h.followEvents, "follow the status": h.followStatus} {
		wg.Go(guard.WrapFunc(doing, func() { do(ctx) }))
	}
	wg.Wait()
}

func (h *hub) followStatus(ctx context.Context) {
	for ctx.Err() == nil {
		if !h.hasReaders() {
			pause.Until(ctx, h.readerJoined)
			continue
		}
		watch, cancel := context.WithCancel(ctx)
		alarm := time.AfterFunc(reconnectAfter, cancel)
		old := time.AfterFunc(staleAfter, func() { h.setStatus(client.Status{}, errNoAnswer) })
		st := client.Status{}
		err := h.hinit.Watch(watch, func(c client.StatusChange) error {
			alarm.Reset(reconnectAfter)
			old.Reset(staleAfter)
			if !c.IsComplete && st.Version == 0 {
				return errNoHinit
			}
			c.Apply(&st)
			h.setStatus(st, nil)
			if !h.hasReaders() {
				return errNoReaders
			}
			return nil
		})
		alarm.Stop()
		old.Stop()
		cancel()
		if err != nil && err != errNoReaders && ctx.Err() == nil { //nolint:errorlint // errNoReaders is returned unwrapped
			h.setStatus(client.Status{}, err)
		}
		pause.For(ctx, retryPause/4)
	}
}

// hasReaders reports whether the page has readers, or had one within watchAfterLastReader.
func (h *hub) hasReaders() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.readers > 0 || time.Since(h.lastReaderLeft) < watchAfterLastReader
}

// addReader counts a reader and wakes followStatus. Call leave when the reader leaves.
func (h *hub) addReader() (leave func()) {
	h.mu.Lock()
	h.readers++
	h.mu.Unlock()
	pause.Wake(h.readerJoined)
	return func() {
		h.mu.Lock()
		h.readers--
		h.lastReaderLeft = time.Now()
		h.mu.Unlock()
	}
}

// followEvents stores hinit's events.
func (h *hub) followEvents(ctx context.Context) {
	var last uint64
	for ctx.Err() == nil {
		err := h.hinit.Events(ctx, client.EventOptions{AfterSeq: last, Follow: true}, func(e client.Event) error {
			if e.LostCount > 0 {
				return nil
			}
			if e.Seq <= last {
				last = 0 // a restarted hinit counts its events from 1
			}
			last = e.Seq
			h.mu.Lock()
			h.events = append(h.events, e)
			if len(h.events) > 2*maxEvents {
				h.events = slices.Clone(h.events[len(h.events)-maxEvents:])
			}
			h.mu.Unlock()
			return nil
		})
		if err != nil {
			last = 0
			h.mu.Lock()
			h.events = nil // hinit sends its whole history again
			h.mu.Unlock()
		}
		pause.For(ctx, retryPause)
	}
}

// currentStatus returns the newest status. It asks hinit, unless the stored status is recent, or readers keep it up to date. If
// hinit does not answer, it returns the last known status and an error.
func (h *hub) currentStatus(ctx context.Context) (client.Status, error) {
	recent := func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return time.Since(h.statusStoredAt) < maxSharedStatusAge || h.readers > 0 && time.Since(h.statusStoredAt) < reconnectAfter
	}
	if !recent() {
		h.fetching.Lock()
		if !recent() {
			shortCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), h.statusTimeout)
			st, err := h.hinit.Status(shortCtx)
			cancel()
			if err == nil && st.Version != client.StatusVersion {
				err = errNoHinit
			}
			h.setStatus(st, err)
		}
		h.fetching.Unlock()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.fault != "" {
		return h.status, errors.New(h.fault)
	}
	return h.status, nil
}

// lastStatus returns the last known status.
func (h *hub) lastStatus() client.Status {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.status
}

// setStatus stores a new status, and makes a new version if the content of the page has changed. If failed is not nil, it keeps
// the old status, and the page shows the error.
func (h *hub) setStatus(st client.Status, failed error) {
	var used usageSample
	if failed == nil {
		used = h.meter.measure(&st)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.statusStoredAt, h.fault = time.Now(), ""
	if failed != nil {
		h.fault = failed.Error()
		st, used = h.status, h.usage
	}
	st.Services = distinctServices(st.Services)
	h.status, h.usage = st, used
	next := &version{number: h.page.number + 1, rows: make(map[string]*row, len(st.Services)), encoded: make(map[string]string)}
	next.summary = h.render("head", makeHeadView(&st, h.fault, used))
	for i := range st.Services {
		s := &st.Services[i]
		view := h.makeRowView(s, used.view(s.Name))
		r := h.page.rows[s.Name]
		if r == nil || r.view != view {
			r = &row{view, h.render("row", &view)}
		}
		next.order, next.rows[s.Name] = append(next.order, s.Name), r
	}
	if next.summary != h.page.summary || !slices.Equal(next.order, h.page.order) || !maps.Equal(next.rows, h.page.rows) {
		h.page, h.versions = next, append(h.versions[max(0, len(h.versions)-maxVersions+1):], next)
		close(h.changed)
		h.changed = make(chan struct{})
	}
}

// distinctServices returns at most maxRows services, without invalid and repeated names.
func distinctServices(list []client.Service) []client.Service {
	list = lo.Filter(list, func(s client.Service, _ int) bool { return s.Name != "" && show.EscapeLine(s.Name) == s.Name })
	list = lo.UniqBy(list, func(s client.Service) string { return s.Name })
	return list[:min(len(list), maxRows)]
}

// rowChanges is the difference between a reader's version and the current version.
type rowChanges struct {
	Version uint64                   `json:"version"`
	Head    template.HTML            `json:"head,omitempty"`
	Rows    map[string]template.HTML `json:"rows,omitempty"`
	Order   []string                 `json:"order,omitempty"`
}

// changesFrom returns the changes from the version old to v; with only, just the changes of this service.
func (v *version) changesFrom(old *version, only string) rowChanges {
	d := rowChanges{Version: v.number, Rows: make(map[string]template.HTML)}
	if only == "" && v.summary != old.summary {
		d.Head = v.summary
	}
	if only == "" && !slices.Equal(v.order, old.order) {
		d.Order = v.order
	}
	for name, r := range v.rows {
		if r != old.rows[name] && (only == "" || only == name) {
			d.Rows[name] = r.html
		}
	}
	return d
}

// changesSince returns the changes since the version with the number from, as JSON, or "" without changes. If the hub no longer
// has that version, it returns the whole page. If only is set, it returns only the changes of this service. now is the number
// of the current version, and more is closed at the next change. The JSON is cached for other readers with the same version.
func (h *hub) changesSince(from uint64, only string) (text string, now uint64, more <-chan struct{}) {
	h.mu.Lock()
	v, old, more := h.page, &version{}, h.changed
	if i := slices.IndexFunc(h.versions, func(v *version) bool { return v.number == from }); i >= 0 {
		old = h.versions[i]
	}
	h.mu.Unlock()
	v.mu.Lock()
	defer v.mu.Unlock()
	key := fmt.Sprint(old.number, only)
	if text, known := v.encoded[key]; known {
		return text, v.number, more
	}
	if d := v.changesFrom(old, only); d.Head != "" || d.Order != nil || len(d.Rows) > 0 {
		data, _ := json.Marshal(d)
		text = string(data)
		if len(v.encoded) < maxVersions {
			v.encoded[key] = text
		}
	}
	return text, v.number, more
}

func (h *hub) allRows() (list []row, top template.HTML, number uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	list = lo.Map(h.page.order, func(name string, _ int) row { return *h.page.rows[name] })
	return list, h.page.summary, h.page.number
}

func (h *hub) usageOf(name string) usageView {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.usage.view(name)
}

func (h *hub) history() []client.Event {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.events)
}
