package web

import (
	"cmp"
	"context"
	"encoding/json"
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/samber/lo"

	"hinit/client"
	"hinit/internal/cmdline"
	"hinit/internal/pause"
)

// listPage is the content of the page with the list of services.
type listPage struct {
	Query, State, Order, GroupedBy string
	Orders                         *ordersView // buttons for the group; nil unless the list shows exactly one group
	StateLinks                     []stateLink
	Groupings                      [][2]string
	Columns                        []column
	Head                           template.HTML
	Groups                         []group
	Version                        uint64
	Shown                          int
}

// stateLink is a link that restricts the list to services in one state, with their number.
type stateLink struct {
	Link, State, Class, Sign, Word string
	N                              int
	On                             bool
}

// column is a column of the list. Its title is a link that sorts the list by it.
type column struct{ Link, Order, Class, Title string }

// group is a part of the list: a heading and its rows.
type group struct {
	Key, Class, Sign, Title string
	Link                    bool // whether the heading links to the page of the group
	Troubled                int  // number of services in trouble; 0 if the title says that they are
	Rows                    []template.HTML
}

// unsortableColumn is the Order of a column without sorting.
const unsortableColumn = "-"

var (
	columns = []column{
		{"", "name", "name", "Name"},
		{"", "", "what", "State"},
		{"", "since", "n age", "Since"},
		{"", "restarts", "n few", "Restarts"},
		{"", "cpu", "n few", "CPU"},
		{"", unsortableColumn, "line", "last hour"},
		{"", "memory", "n mem", "Memory"},
		{"", unsortableColumn, "line", "last hour"},
		{"", unsortableColumn, "exit", "Last exit"},
		{"", unsortableColumn, "note", "Note"},
	}
	// grades are the states by which users can group and filter the list. The Class of each stateMark identifies the state.
	grades    = []stateMark{{"bad", "✖", "in trouble"}, {"wait", "◐", "on the way"}, {"good", "●", "up"}, {"off", "○", "down"}}
	groupings = [][2]string{{"", "by state"}, {"profile", "by profile"}, {"group", "by group"}, {"none", "in one list"}}
)

func (s *Server) showList(w http.ResponseWriter, r *http.Request) {
	_, err := s.hub.currentStatus(r.Context())
	rows, head, version := s.hub.allRows()
	page := listPage{
		Query: oneLine(r.FormValue("q")), State: oneLine(r.FormValue("state")), Order: oneLine(r.FormValue("order")), GroupedBy: oneLine(r.FormValue("by")), Groupings: groupings, Head: head, Version: version,
	}
	title := "Services"
	if name := r.PathValue("name"); name != "" {
		if !slices.ContainsFunc(rows, func(row row) bool { return row.view.Group == name }) {
			s.showServiceError(w, r, err)
			return
		}
		title, page.Query, page.GroupedBy, page.Orders = "@"+name, "@"+name, "none", s.ordersFor(r, "group", name)
	}
	count := lo.CountValuesBy(rows, func(x row) string { return x.view.Class })
	shown := lo.Filter(rows, func(x row, _ int) bool {
		return x.view.contains(page.Query) && (page.State == "" || page.State == x.view.Class)
	})
	link := func(key, value string) string {
		q := url.Values{}
		for k, v := range map[string]string{"q": page.Query, "state": page.State, "order": page.Order, "by": page.GroupedBy, key: value} {
			if v != "" {
				q.Set(k, v)
			}
		}
		return s.Base + "/?" + q.Encode()
	}
	page.StateLinks = append(page.StateLinks, stateLink{link("state", ""), "", "", "", "all", len(rows), page.State == ""})
	for _, g := range grades {
		page.StateLinks = append(page.StateLinks, stateLink{link("state", g.Class), g.Class, g.Class, g.Sign, g.Word, count[g.Class], page.State == g.Class})
	}
	page.Columns = slices.Clone(columns)
	for i := range page.Columns {
		if c := &page.Columns[i]; c.Order != unsortableColumn {
			c.Link = link("order", c.Order)
		}
	}
	sortRows(shown, page.Order)
	if page.Order == "" || page.GroupedBy == "" { // services in trouble come first, also within each group
		slices.SortStableFunc(shown, func(x, y row) int { return cmp.Compare(gradeOfRow(x), gradeOfRow(y)) })
	}
	page.Groups, page.Shown = groupRows(shown, page.GroupedBy), len(shown)
	s.showPage(w, r, http.StatusOK, "list", title, page)
}

// sortRows sorts rows by a column. The highest usage, the most restarts and the latest change come first.
func sortRows(list []row, order string) {
	compare := map[string]func(a, b *rowView) int{
		"name":     func(a, b *rowView) int { return cmp.Compare(a.Name, b.Name) },
		"since":    func(a, b *rowView) int { return b.Since.Compare(a.Since) },
		"restarts": func(a, b *rowView) int { return cmp.Compare(b.Restarts, a.Restarts) },
		"cpu":      func(a, b *rowView) int { return cmp.Compare(b.Hundredths, a.Hundredths) },
		"memory":   func(a, b *rowView) int { return cmp.Compare(b.Megabytes, a.Megabytes) },
	}[order]
	if compare != nil {
		slices.SortStableFunc(list, func(x, y row) int { return compare(&x.view, &y.view) })
	}
}

// gradeOfRow returns the index in grades of a row's state. Trouble has the lowest index.
func gradeOfRow(x row) int {
	return slices.IndexFunc(grades, func(g stateMark) bool { return g.Class == x.view.Class })
}

// groupRows divides rows into groups: by state, by profile, by group, or all in one. Groups by state keep the order of the rows.
// Other groups are sorted by name; rows without a profile or group come last.
func groupRows(list []row, by string) (out []group) {
	at := make(map[string]int)
	for _, x := range list {
		g := group{Key: "all", Title: "all"}
		switch by {
		case "":
			mark := grades[gradeOfRow(x)]
			g = group{Key: mark.Class, Class: mark.Class, Sign: mark.Sign, Title: mark.Word}
		case "profile":
			g = group{Key: x.view.Profile, Title: cmp.Or(x.view.Profile, "no profile")}
		case "group":
			g = group{Title: "no group"}
			if name := x.view.Group; name != "" {
				g = group{Key: name, Title: "@" + name, Link: true}
			}
		}
		i, is := at[g.Key]
		if !is {
			i = len(out)
			at[g.Key], out = i, append(out, g)
		}
		if (by == "profile" || by == "group") && x.view.Class == "bad" {
			out[i].Troubled++
		}
		out[i].Rows = append(out[i].Rows, x.html)
	}
	if by != "" {
		slices.SortFunc(out, func(a, b group) int {
			if (a.Key == "") != (b.Key == "") {
				return cmp.Compare(b.Key, a.Key)
			}
			return cmp.Compare(a.Key, b.Key)
		})
	}
	return out
}

// listNames sends the names of the services that the search q finds, each with its state and its group, for the filter and the
// command palette.
func (s *Server) listNames(w http.ResponseWriter, r *http.Request) {
	_, _ = s.hub.currentStatus(r.Context())
	rows, _, _ := s.hub.allRows()
	list := lo.FilterMap(rows, func(x row, _ int) ([3]string, bool) {
		return [3]string{x.view.Name, x.view.Class, x.view.Group}, x.view.contains(r.FormValue("q"))
	})
	text, _ := json.Marshal(list)
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(text)
}

// contains reports whether a search for text finds a row. A pattern or @GROUP finds the same services as on the command line.
func (v *rowView) contains(text string) bool {
	return cmdline.MatchesSearch(text, strings.Join([]string{v.Name, v.Profile, v.Word, v.ServedBy, v.Exit, v.Note}, " "), &client.Service{Name: v.Name, Profile: v.Profile, Group: v.Group})
}

const heartbeat = ": beat\n\n"

// stream sends server-sent events of one kind until the client leaves, the server ends or the client's session ends. produce
// sends the data of the events to out until its context ends. At most ahead events wait in out; a client with more is
// disconnected. If limit is reached, stream answers with the status 503.
func (s *Server) stream(w http.ResponseWriter, r *http.Request, limit *connectionLimit, event string, ahead int, produce func(ctx context.Context, out chan<- []byte)) {
	key := s.limitKey(r)
	if !limit.acquire(key) {
		w.Header().Set("Retry-After", "30")
		http.Error(w, "too many pages are live", http.StatusServiceUnavailable)
		return
	}
	defer limit.release(key)
	ctx, cancel := context.WithCancel(r.Context())
	data := make(chan []byte, ahead)
	go func() {
		defer close(data)
		produce(ctx, data)
	}()
	defer func() {
		cancel()
		for range data {
		}
	}()
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // tells nginx not to buffer the stream
	c := http.NewResponseController(w)
	beats := time.Tick(s.heartbeatPause)
	for text := heartbeat; ; {
		if c.SetWriteDeadline(time.Now().Add(s.writeTimeout)) != nil {
			return
		}
		if _, err := w.Write([]byte(text)); err != nil || c.Flush() != nil {
			return
		}
		select {
		case one, more := <-data:
			for text = ""; more; one, more = <-data {
				text += "event: " + event + "\ndata: " + string(one) + "\n\n" // the JSON in one contains no line end
				if len(data) == 0 {
					break
				}
			}
			if text == "" {
				return
			}
		case <-beats:
			text = heartbeat
			if !s.mayRead(r) { // the session has ended
				return
			}
		case <-s.ended:
			return
		}
	}
}

// streamList sends the changes of the list of services since the version of the client's page.
func (s *Server) streamList(w http.ResponseWriter, r *http.Request) {
	version, _ := strconv.ParseUint(r.FormValue("version"), 10, 64)
	only := r.FormValue("only")
	s.stream(w, r, s.streams, "rows", 0, func(ctx context.Context, out chan<- []byte) {
		defer s.hub.addReader()()
		for ctx.Err() == nil {
			data, now, more := s.hub.changesSince(version, only)
			// Send all changes of the pause together.
			version = now
			if data != "" && (!pause.Send(ctx, out, []byte(data)) || !pause.For(ctx, minChangeInterval)) {
				return
			}
			pause.Until(ctx, more)
		}
	})
}
