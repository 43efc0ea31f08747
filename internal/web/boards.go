package web

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/samber/lo"
	"golang.org/x/sync/singleflight"
)

// dispatcher is the name of the service that dispatches the tasks on the boards.
const dispatcher = "kanban"

const (
	maxBoards   = 50
	maxProfiles = 500
)

// safeText is a text from another program, such as the title of a task, that an agent may have chosen. Decoding it from JSON
// makes it safe to show, see [oneLine].
type safeText string

func (w *safeText) UnmarshalText(text []byte) error {
	*w = safeText(oneLine(string(text)))
	return nil
}

// board is a task board in the output of `hinit kanban stats --all`.
type board struct {
	Board, Name, Error safeText
	Stats              struct {
		ByStatus   map[string]int              `json:"by_status"`
		ByAssignee map[safeText]map[string]int `json:"by_assignee"`
		OldestAge  int64                       `json:"oldest_ready_age_seconds"` // age of the oldest ready task in seconds; 0 without a ready task
	}
	Blocked []struct{ ID, Title, Assignee, Error safeText }
	Runs    []attempt
}

// attempt is one attempt at a task. EndedAt is 0 for a running attempt.
type attempt struct {
	Task, Title, Profile, Outcome, Error safeText
	StartedAt                            int64 `json:"started_at"`
	EndedAt                              int64 `json:"ended_at"`
}

// Started returns the start time of the attempt.
func (a attempt) Started() time.Time { return time.Unix(a.StartedAt, 0) }

// Duration returns the duration of the attempt so far.
func (a attempt) Duration() time.Duration {
	end := lo.Ternary(a.EndedAt > 0, time.Unix(a.EndedAt, 0), time.Now())
	return max(end.Sub(a.Started()), 0).Round(time.Second)
}

// StateMark returns the mark for the outcome of the attempt.
func (a attempt) StateMark() stateMark {
	switch {
	case a.EndedAt == 0:
		return stateMark{"wait", "◐", "running"}
	case a.Outcome == "completed":
		return stateMark{"good", "●", "completed"}
	case a.Outcome == "reclaimed", a.Outcome == "scheduled", a.Outcome == "":
		return stateMark{"off", "○", string(cmp.Or(a.Outcome, "ended"))}
	}
	return stateMark{"bad", "✖", string(a.Outcome)}
}

// sandbox is a sandbox in the output of `hinit sandbox ls --json`.
type sandbox struct {
	Name, Task, Profile, State, Image, Exec, Reason safeText
	Created, IdleSince                              time.Time
	Commands                                        int
}

// StateMark returns the mark for the state of the sandbox.
func (s sandbox) StateMark() stateMark {
	if s.State == "running" {
		return stateMark{"good", "●", "running"}
	}
	return stateMark{"off", "○", string(s.State)}
}

// boardsPage is the content of the page with the task boards.
type boardsPage struct {
	Fault          string
	Dispatcher     string // name of the dispatcher's service; "" if the container has none
	DispatcherMark stateMark
	DispatcherText string // the dispatcher's problem, or its status text
	Boards         []board
}

// decodeList decodes the JSON list in the output of a program. fault says why the list is outdated or missing; "" means that it
// is current.
func decodeList[T any](result programResult, program string) (list []T, fault string) {
	fault = oneLine(result.fault)
	if result.text != nil && json.Unmarshal(result.text, &list) != nil {
		fault = program + " says something that this version does not know."
	}
	return list, fault
}

func (s *Server) boardsPage(w http.ResponseWriter, r *http.Request) {
	st, err := s.hub.currentStatus(r.Context())
	result := s.boards.cachedOrRun(st.Init.Home, maxPageAge, programTimeout)
	var page boardsPage
	if v := st.Find(dispatcher); v != nil {
		page.Dispatcher, page.DispatcherMark, page.DispatcherText = v.Name, markOf(v), oneLine(cmp.Or(v.Problem, v.StatusText))
	}
	if !result.exists && page.Dispatcher == "" {
		s.showError(w, r, http.StatusNotFound, "There is no task board.")
		return
	}
	list, fault := decodeList[board](result, "hinit-kanban")
	page.Fault = fault
	if fault == "" && err != nil {
		page.Fault = oneLine(err.Error())
	}
	page.Boards = list[:min(len(list), maxBoards)]
	for _, b := range page.Boards {
		names := slices.Sorted(maps.Keys(b.Stats.ByAssignee))
		for _, name := range names[min(len(names), maxProfiles):] {
			delete(b.Stats.ByAssignee, name)
		}
	}
	s.showPage(w, r, http.StatusOK, "boards", "Task board", page)
}

const maxSandboxes = 1000

func (s *Server) sandboxesPage(w http.ResponseWriter, r *http.Request) {
	st, _ := s.hub.currentStatus(r.Context()) // if hinit doesn't answer, the page lacks its status
	result := s.sandboxes.cachedOrRun(st.Init.Home, maxPageAge, programTimeout)
	if !result.exists {
		s.showError(w, r, http.StatusNotFound, "There is no service of sandboxes.")
		return
	}
	list, fault := decodeList[sandbox](result, "hinit-sandbox")
	slices.SortStableFunc(list, func(a, b sandbox) int {
		return cmp.Or(cmp.Compare(a.Profile, b.Profile), cmp.Compare(a.Task, b.Task))
	})
	s.showPage(w, r, http.StatusOK, "sandboxes", "Sandboxes", struct {
		Fault     string
		Sandboxes []sandbox
	}{fault, list[:min(len(list), maxSandboxes)]})
}

// optionalPages reports whether the navigation shows entries for the task boards and for the sandboxes. Pages without content
// get no entry.
func (s *Server) optionalPages() (boards, sandboxes bool) {
	st := s.hub.lastStatus()
	boards = st.Find(dispatcher) != nil || s.boards.cachedOrRun(st.Init.Home, maxNavigationAge, firstAnswerTimeout).exists
	return boards, s.sandboxes.cachedOrRun(st.Init.Home, maxNavigationAge, firstAnswerTimeout).exists
}

// Programs are functions that run other programs of hinit and return their output in JSON. home is hinit's data directory. If the
// container has no boards or no sandboxes, the error is [fs.ErrNotExist].
type Programs struct {
	Boards    func(ctx context.Context, home string) ([]byte, error) // returns the output of hinit kanban stats --all
	Sandboxes func(ctx context.Context, home string) ([]byte, error) // returns the output of hinit sandbox ls --json
}

const (
	maxPageAge       = 2 * time.Second  // maximum age of an answer on the page of the boards or sandboxes
	maxNavigationAge = 30 * time.Second // maximum age of an answer for the navigation entries
	programTimeout   = 5 * time.Second

	firstAnswerTimeout = time.Second // how long a page waits for the first answer
)

// programOutput caches the output of a program for all readers. It runs the program again when the output is too old, only one
// run at a time.
type programOutput struct {
	run         func(ctx context.Context, home string) ([]byte, error)
	emptyOutput string
	running     singleflight.Group

	mu   sync.Mutex
	last programResult
}

type programResult struct {
	at     time.Time // time of the last run; zero before the first run
	text   []byte    // output of the command, in JSON; nil without output
	exists bool      // the container has boards or sandboxes
	fault  string    // error of the last run, after which text is outdated; "" if the run succeeded
}

// cachedOrRun returns the cached answer if it is younger than old. Otherwise it runs the program and waits at most for patience.
// If the program takes longer, latest returns the old answer.
func (s *programOutput) cachedOrRun(home string, old, patience time.Duration) programResult {
	s.mu.Lock()
	last := s.last
	s.mu.Unlock()
	if s.run == nil || !last.at.IsZero() && time.Since(last.at) < old {
		return last
	}
	if !last.at.IsZero() && old == maxNavigationAge {
		patience = 0 // an old answer is better than a wait; the next reader gets the new answer
	}
	done := s.running.DoChan("", func() (any, error) { return s.runProgram(home), nil })
	select {
	case result := <-done:
		return result.Val.(programResult)
	case <-time.After(patience):
	}
	if last.exists {
		last.fault = "cannot ask for more: no answer within " + patience.String()
	}
	return last
}

// runProgram runs the program and stores its answer. While the program hangs, for instance on a volume, latest starts no second
// run.
func (s *programOutput) runProgram(home string) programResult {
	ctx, cancel := context.WithTimeout(context.Background(), programTimeout)
	defer cancel()
	text, err := s.run(ctx, home)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last.at = time.Now()
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && string(bytes.TrimSpace(text)) == s.emptyOutput:
		s.last = programResult{at: s.last.at}
	case err == nil:
		s.last = programResult{at: s.last.at, text: text, exists: true}
	default:
		s.last.exists, s.last.fault = true, err.Error()
	}
	return s.last
}
