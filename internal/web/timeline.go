package web

import (
	"net/http"
	"slices"
	"strconv"
	"time"

	"hinit/client"
)

// eventView is an event as the pages show it.
type eventView struct {
	At            time.Time
	Service, Text string
}

func viewEvent(e client.Event) eventView {
	text := plain(e.Reason)
	if e.To != "" {
		text = plain(e.From + " → " + e.To)
		if e.Reason != "" {
			text += ": " + plain(e.Reason)
		}
	}
	return eventView{e.At, plain(e.Service), text}
}

// segment is a part of a bar: what a service was from when to when, in thousandths of the bar.
type segment struct {
	X, Width int
	Class    string
	Text     string
}

// bar is the past of one service.
type bar struct {
	Name     string
	Segments []segment
	Outages  int
	Down     time.Duration
}

// outage is a time in which a service that ran before did not.
type outage struct {
	Service  string
	From, To time.Time
	Cause    string
	Ongoing  bool
}

// Took is how long it lasted.
func (o outage) Took() time.Duration { return o.To.Sub(o.From) }

// timelinePage is what has happened.
type timelinePage struct {
	Hours    int
	From, To time.Time
	Bars     []bar
	Outages  []outage
	Events   []eventView
	Fault    string
}

const (
	mostBars    = 500
	mostOutages = 100
	barWidth    = 1000
)

func (s *Server) events(w http.ResponseWriter, r *http.Request) {
	st, err := s.hub.current(r.Context())
	page := timelinePage{Hours: 1, To: time.Now()}
	if hours, err := strconv.Atoi(r.FormValue("hours")); err == nil {
		page.Hours = max(1, min(hours, 24*7))
	}
	if err != nil {
		page.Fault = plain(err.Error())
	}
	page.From = page.To.Add(-time.Duration(page.Hours) * time.Hour)
	history := s.hub.history()
	page.Bars, page.Outages = timeline(st.Services, history, page.From, page.To)
	for _, e := range slices.Backward(history) {
		if len(page.Events) == 200 || e.At.Before(page.From) {
			break
		}
		page.Events = append(page.Events, viewEvent(e))
	}
	s.show(w, r, http.StatusOK, "events", "Timeline", page)
}

// class is how a state looks in a bar.
func class(state string) string {
	s := client.Service{State: state, Ready: true}
	return lookOf(&s).Class
}

// timeline makes the bars of services, and their outages, newest first. What was before the first event that is known is left open.
func timeline(services []client.Service, events []client.Event, from, to time.Time) (bars []bar, outages []outage) {
	of := make(map[string][]client.Event)
	for _, e := range events {
		of[e.Service] = append(of[e.Service], e)
	}
	for i := range services[:min(len(services), mostBars)] {
		v := &services[i]
		b := bar{Name: v.Name}
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
			if n := len(b.Segments); n > 0 && b.Segments[n-1].Class == class(state) && b.Segments[n-1].X+b.Segments[n-1].Width >= x {
				b.Segments[n-1].Width = max(end, x+1) - b.Segments[n-1].X // what is thinner than a line is one
				return
			}
			b.Segments = append(b.Segments, segment{x, max(end-x, 1), class(state), plain(state)})
		}
		back := func(until time.Time, ongoing bool) {
			if !gone.IsZero() && until.After(from) {
				outages = append(outages, outage{v.Name, gone, until, plain(cause), ongoing})
				b.Outages++
				b.Down += until.Sub(gone)
			}
			gone = time.Time{}
		}
		for _, e := range of[v.Name] {
			if e.Exit != nil {
				cause = exitWords(e.Exit)
			}
			if e.To == "" || e.At.After(to) {
				continue
			}
			add(e.At)
			if state == "" && e.From != "" && e.From != e.To { // it was that before the first event
				state, at = e.From, from
				add(e.At)
			}
			switch {
			case e.From == client.StateUp && e.To != client.StateUp:
				gone = e.At
			case e.To == client.StateUp:
				back(e.At, false)
			case e.To == client.StateDown:
				gone = time.Time{} // it was told to
			}
			state, at = e.To, e.At
		}
		if state == "" {
			state, at = v.State, v.Since
		}
		add(to)
		back(to, true)
		bars = append(bars, b)
	}
	slices.SortFunc(outages, func(a, b outage) int { return b.From.Compare(a.From) })
	return bars, outages[:min(len(outages), mostOutages)]
}
