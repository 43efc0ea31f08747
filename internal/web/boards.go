package web

import (
	"cmp"
	"context"
	"encoding/json"
	"io/fs"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"
)

// The service that dispatches the boards.
const dispatcher = "kanban"

const (
	mostBoards   = 50
	mostProfiles = 500
)

// boardJSON is what hinit kanban stats --all says of a board.
type boardJSON struct {
	Board, Name, Error string
	Stats              struct {
		ByStatus   map[string]int            `json:"by_status"`
		ByAssignee map[string]map[string]int `json:"by_assignee"`
		OldestAge  int64                     `json:"oldest_ready_age_seconds"`
	}
	Blocked []struct{ ID, Title, Assignee, Error string }
	Runs    []struct {
		Task, Title, Profile, Outcome, Error string
		StartedAt                            int64 `json:"started_at"`
		EndedAt                              int64 `json:"ended_at"`
	}
}

// sandboxJSON is what hinit sandbox ls --json says of a sandbox.
type sandboxJSON struct {
	Name, Task, Profile, State, Image, Exec, Reason string
	Created                                         time.Time
	Commands, Clients                               int
	IdleSince                                       time.Time
}

// boardsPage is the task boards.
type boardsPage struct {
	Fault      string
	Dispatcher string // the service, "" when there is none
	Looks      look
	Says       string // of the boards
	Boards     []boardView
}

type boardView struct {
	Name, Fault string
	Counts      []countView
	Oldest      time.Duration
	Who         []whoView
	Blocked     []taskView
	Runs        []attemptView
}

type countView struct {
	Name string
	N    int
}

type whoView struct {
	Name                          string
	Running, Ready, Blocked, Done int
}

type taskView struct{ ID, Title, Who, Why string }

type attemptView struct {
	taskView
	look
	Started time.Time
	Took    time.Duration // 0 while it runs
}

// boardsThere asks for the boards; a list of none is nothing of the kind.
func boardsThere(ask func(context.Context, string) ([]byte, error)) func(context.Context, string) ([]byte, error) {
	if ask == nil {
		return nil
	}
	return func(ctx context.Context, home string) ([]byte, error) {
		text, err := ask(ctx, home)
		if err == nil && strings.TrimSpace(string(text)) == "[]" {
			err = fs.ErrNotExist
		}
		return text, err
	}
}

func (s *Server) boardsPage(w http.ResponseWriter, r *http.Request) {
	st, err := s.hub.current(r.Context())
	said := s.boards.get(st.Init.Home, besideFresh, besideTime)
	page := boardsPage{Fault: oneLine(said.fault)}
	if err != nil {
		page.Fault = oneLine(err.Error())
	}
	if v := find(st, dispatcher); v != nil {
		page.Dispatcher, page.Looks, page.Says = v.Name, lookOf(v), oneLine(cmp.Or(v.Problem, v.StatusText))
	}
	if !said.there && page.Dispatcher == "" {
		s.fail(w, r, http.StatusNotFound, "There is no task board.")
		return
	}
	var list []boardJSON
	if said.text != nil {
		if err := json.Unmarshal(said.text, &list); err != nil {
			page.Fault = "hinit-kanban says something that this version does not know."
		}
	}
	for i := range list[:min(len(list), mostBoards)] {
		page.Boards = append(page.Boards, viewBoard(&list[i], time.Now()))
	}
	s.show(w, r, http.StatusOK, "boards", "Task board", page)
}

func viewBoard(b *boardJSON, now time.Time) boardView {
	v := boardView{Name: oneLine(cmp.Or(b.Name, b.Board)), Fault: oneLine(b.Error), Oldest: time.Duration(b.Stats.OldestAge) * time.Second}
	for _, status := range []string{"ready", "running", "blocked"} {
		v.Counts = append(v.Counts, countView{status, b.Stats.ByStatus[status]})
		delete(b.Stats.ByStatus, status)
	}
	for _, status := range slices.Sorted(maps.Keys(b.Stats.ByStatus)) {
		v.Counts = append(v.Counts, countView{oneLine(status), b.Stats.ByStatus[status]})
	}
	who := slices.Sorted(maps.Keys(b.Stats.ByAssignee))
	for _, name := range who[:min(len(who), mostProfiles)] {
		by := b.Stats.ByAssignee[name]
		v.Who = append(v.Who, whoView{oneLine(name), by["running"], by["ready"], by["blocked"], by["done"]})
	}
	for _, t := range b.Blocked {
		v.Blocked = append(v.Blocked, taskView{oneLine(t.ID), oneLine(t.Title), oneLine(t.Assignee), oneLine(t.Error)})
	}
	for _, r := range b.Runs {
		a := attemptView{taskView: taskView{oneLine(r.Task), oneLine(r.Title), oneLine(r.Profile), oneLine(r.Error)}, look: lookOfAttempt(r.Outcome, r.EndedAt), Started: time.Unix(r.StartedAt, 0)}
		end := now
		if r.EndedAt > 0 {
			end = time.Unix(r.EndedAt, 0)
		}
		a.Took = max(end.Sub(a.Started), 0).Round(time.Second)
		v.Runs = append(v.Runs, a)
	}
	return v
}

func lookOfAttempt(outcome string, ended int64) look {
	switch {
	case ended == 0:
		return look{"wait", "◐", "running"}
	case outcome == "completed":
		return look{"good", "●", outcome}
	case outcome == "reclaimed", outcome == "scheduled", outcome == "":
		return look{"off", "○", oneLine(cmp.Or(outcome, "ended"))}
	}
	return look{"bad", "✖", oneLine(outcome)}
}

// sandboxesPage is the sandboxes.
type sandboxesPage struct {
	Fault     string
	Sandboxes []sandboxView
}

type sandboxView struct {
	look
	Name, Task, Profile, Image, Exec string
	Created, IdleSince               time.Time
	Commands                         int
}

const mostSandboxes = 1000

func (s *Server) sandboxesPage(w http.ResponseWriter, r *http.Request) {
	st, _ := s.hub.current(r.Context()) // the sandboxes are there without hinit
	said := s.sandboxes.get(st.Init.Home, besideFresh, besideTime)
	if !said.there {
		s.fail(w, r, http.StatusNotFound, "There is no service of sandboxes.")
		return
	}
	page := sandboxesPage{Fault: oneLine(said.fault)}
	var list []sandboxJSON
	if said.text != nil {
		if err := json.Unmarshal(said.text, &list); err != nil {
			page.Fault = "hinit-sandbox says something that this version does not know."
		}
	}
	slices.SortStableFunc(list, func(a, b sandboxJSON) int {
		return cmp.Or(cmp.Compare(a.Profile, b.Profile), cmp.Compare(a.Task, b.Task))
	})
	for _, b := range list[:min(len(list), mostSandboxes)] {
		v := sandboxView{
			Name: oneLine(b.Name), Task: oneLine(b.Task), Profile: oneLine(b.Profile), Image: oneLine(b.Image), Exec: oneLine(b.Exec), Created: b.Created,
			IdleSince: b.IdleSince, Commands: b.Commands, look: look{"off", "○", oneLine(b.State)},
		}
		if b.State == "running" {
			v.look = look{"good", "●", b.State}
		}
		if b.Reason != "" {
			v.Exec += " (" + oneLine(b.Reason) + ")"
		}
		page.Sandboxes = append(page.Sandboxes, v)
	}
	s.show(w, r, http.StatusOK, "sandboxes", "Sandboxes", page)
}

// optionalPages reports which navigation entries a page has: the boards and the sandboxes, if the container has any.
func (s *Server) optionalPages() (boards, sandboxes bool) {
	st := s.hub.last()
	boards = find(st, dispatcher) != nil || s.boards.get(st.Init.Home, besideLook, besidePatience).there
	return boards, s.sandboxes.get(st.Init.Home, besideLook, besidePatience).there
}
