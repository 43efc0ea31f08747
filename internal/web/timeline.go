package web

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/samber/lo"

	"hinit/client"
)

// eventText describes an event on one line that is safe to show.
func eventText(e client.Event) string {
	switch {
	case e.ToState == "":
		return oneLine(e.Reason)
	case e.Reason == "":
		return oneLine(e.FromState + " → " + e.ToState)
	}
	return oneLine(e.FromState+" → "+e.ToState) + ": " + oneLine(e.Reason)
}

// segment is a part of a bar: a time without a change of the service's state. X and Width are in thousandths of the bar's
// width.
type segment struct {
	X, Width int
	Class    string
	Text     string
}

// timelineBar shows the states of one service over a period.
type timelineBar struct {
	Name     string
	Segments []segment
	Outages  int
	DownTime time.Duration
}

// outage is a time in which a service was down without an order, after it had been up.
type outage struct {
	Service  string
	From, To time.Time
	Cause    string
	Ongoing  bool
}

func (o outage) Duration() time.Duration { return o.To.Sub(o.From) }

// pastView is the period of a timeline, with links to other periods.
type pastView struct {
	Hours    int // length in hours of a period that ends now; 0 for a period with another end
	From, To time.Time
	Bars     []timelineBar
	Links    [][2]string
}

// timelinePage is the content of the timeline page.
type timelinePage struct {
	Past          pastView
	Bars          []timelineBar // bars of services with an outage
	WithoutOutage []timelineBar
	Outages       []outage
	Events        []client.Event
	Fault         string
}

const (
	maxBars        = 500
	maxOutages     = 100
	barWidth       = 1000
	maxPeriodHours = 24 * 7 // longest period of a timeline, in hours
	minPeriod      = 10 * time.Second
)

// requestedPeriod returns the period that a request selects: the last hours, or the time from the parameter "from" to the
// parameter "to", both in seconds since 1970.
func requestedPeriod(r *http.Request, now time.Time) (v pastView) {
	v.To, v.Hours = now, 1
	if hours, err := strconv.Atoi(r.FormValue("hours")); err == nil {
		v.Hours = max(1, min(hours, maxPeriodHours))
	}
	v.From = now.Add(-time.Duration(v.Hours) * time.Hour)
	from, err1 := strconv.ParseInt(r.FormValue("from"), 10, 64)
	to, err2 := strconv.ParseInt(r.FormValue("to"), 10, 64)
	if err1 == nil && err2 == nil && from < to {
		v.Hours = 0
		v.To = time.Unix(min(to, now.Unix()), 0)
		v.From = time.Unix(from, 0)
		if v.To.Sub(v.From) > maxPeriodHours*time.Hour {
			v.From = v.To.Add(-maxPeriodHours * time.Hour)
		}
		if v.To.Sub(v.From) < minPeriod {
			v.From = v.To.Add(-minPeriod)
		}
	}
	width := v.To.Sub(v.From)
	to = v.To.Unix()
	seconds := int64(width / time.Second)
	link := func(word string, from, to int64) {
		v.Links = append(v.Links, [2]string{fmt.Sprintf("?from=%d&to=%d", from, to), word})
	}
	link("earlier", to-2*seconds, to-seconds)
	if now.Sub(v.To) > time.Second {
		link("later", to, to+seconds)
	}
	link("zoom in", to-seconds/2, to)
	link("zoom out", to-3*seconds/2, to+seconds/2)
	return v
}

func (s *Server) showTimeline(w http.ResponseWriter, r *http.Request) {
	st, err := s.hub.currentStatus(r.Context())
	page := timelinePage{Past: requestedPeriod(r, time.Now())}
	if err != nil {
		page.Fault = oneLine(err.Error())
	}
	history := s.hub.history()
	bars, outages := timeline(st.Services, history, page.Past.From, page.Past.To)
	page.Outages = outages
	page.Bars, page.WithoutOutage = lo.FilterReject(bars, func(b timelineBar, _ int) bool { return b.Outages > 0 })
	for _, e := range slices.Backward(history) {
		if len(page.Events) == 200 || e.At.Before(page.Past.From) {
			break
		}
		if !e.At.After(page.Past.To) {
			page.Events = append(page.Events, e)
		}
	}
	s.showPage(w, r, http.StatusOK, "events", "Timeline", page)
}

func stateClass(state string) string {
	return markOf(&client.Service{State: state, Ready: true}).Class
}

// timeline computes, from events, the bars of the services for the period from `from` to `to`. It also returns their outages,
// newest first. Before the first known event of a service, its bar shows the previous state in this event, if known.
func timeline(services []client.Service, events []client.Event, from, to time.Time) (bars []timelineBar, outages []outage) {
	of := lo.GroupBy(events, func(e client.Event) string { return e.Service })
	for i := range services[:min(len(services), maxBars)] {
		v := &services[i]
		b := timelineBar{Name: v.Name}
		var state, cause string
		var at, gone time.Time
		add := func(until time.Time) {
			begin := at
			if begin.Before(from) {
				begin = from
			}
			if state == "" || !until.After(begin) {
				return
			}
			x := int(begin.Sub(from) * barWidth / to.Sub(from))
			end := int(until.Sub(from) * barWidth / to.Sub(from))
			if n := len(b.Segments); n > 0 && b.Segments[n-1].Class == stateClass(state) && b.Segments[n-1].X+b.Segments[n-1].Width >= x {
				// A segment must be at least one unit wide, so that it is visible.
				b.Segments[n-1].Width = max(end, x+1) - b.Segments[n-1].X
				return
			}
			b.Segments = append(b.Segments, segment{x, max(end-x, 1), stateClass(state), oneLine(state)})
		}
		back := func(until time.Time, ongoing bool) {
			if !gone.IsZero() && until.After(from) {
				outages = append(outages, outage{v.Name, gone, until, oneLine(cause), ongoing})
				b.Outages++
				b.DownTime += until.Sub(gone)
			}
			gone = time.Time{}
		}
		for _, e := range of[v.Name] {
			if e.Exit != nil {
				cause = exitText(e.Exit)
			}
			if e.ToState == "" || e.At.After(to) {
				continue
			}
			add(e.At)
			if state == "" && e.FromState != "" && e.FromState != e.ToState { // the first event has the state before it
				state, at = e.FromState, from
				add(e.At)
			}
			switch {
			case e.FromState == client.StateUp && e.ToState != client.StateUp:
				gone = e.At
			case e.ToState == client.StateUp:
				back(e.At, false)
			case e.ToState == client.StateDown:
				gone = time.Time{} // an order stopped the service, so its end is no outage
			}
			state, at = e.ToState, e.At
		}
		if state == "" {
			state, at = v.State, v.Since
		}
		add(to)
		back(to, true)
		bars = append(bars, b)
	}
	slices.SortFunc(outages, func(a, b outage) int { return b.From.Compare(a.From) })
	return bars, outages[:min(len(outages), maxOutages)]
}
