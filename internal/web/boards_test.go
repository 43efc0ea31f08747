package web

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"hinit/client"
	"hinit/internal/testkit"
)

const boardsJSON = `[{"board":"default","name":"Main","error":"","stats":{"by_status":{"ready":3,"running":1,"blocked":1,"done":7},
"by_assignee":{"coder":{"running":1,"ready":2},"ops":{"blocked":1,"done":7}},"oldest_ready_age_seconds":90},
"blocked":[{"id":"t_1","title":"EVIL","assignee":"ops","error":"no key"}],
"runs":[{"task":"t_2","title":"build it","profile":"coder","outcome":"","error":"","started_at":1700000000,"ended_at":0},
{"task":"t_1","title":"EVIL","profile":"ops","outcome":"crashed","error":"EVIL","started_at":1700000000,"ended_at":1700000065}]},
{"board":"other","name":"","error":"cannot open the board: it is broken","stats":{"by_status":{},"by_assignee":{},"oldest_ready_age_seconds":0},"blocked":[],"runs":[]}]`

const sandboxesJSON = `[{"container":"c0ffee","name":"hinit-EVIL","image":"debian:12","task":"EVIL","profile":"coder","labels":{"secret":"LABEL"},"state":"running",
"created":"2026-01-02T03:04:05Z","exec":"direct","reason":"","commands":2,"idleSince":"2026-01-02T03:04:05Z"},
{"container":"c0","name":"old","image":"debian:12","task":"a","profile":"coder","state":"exited","created":"2026-01-02T03:04:05Z","exec":"","reason":""}]`

func programPrinting(text string) func(context.Context, string) ([]byte, error) {
	return func(context.Context, string) ([]byte, error) { return []byte(text), nil }
}

func TestBoardsAndSandboxes(t *testing.T) {
	key := "sk-" + "ant-api03-" + strings.Repeat("abcd1234", 12)
	evil := `\"><script>alert(1)</script><img src=x onerror=alert(2)> ` + key
	dispatches := client.Service{Name: "kanban", State: client.StateUp, Ready: true, StatusText: "3 ready, 2 capped", Since: time.Now()}
	s := startTestSite(t, Options{Hinit: newFakeHinit(coderGateway(), dispatches), Base: "/x", Programs: Programs{
		Boards: programPrinting(strings.ReplaceAll(boardsJSON, "EVIL", evil)), Sandboxes: programPrinting(strings.ReplaceAll(sandboxesJSON, "EVIL", evil)),
	}})
	for path, wanted := range map[string][]string{
		"/": {`href="/x/boards"`, `href="/x/sandboxes"`},
		"/boards": {
			`href="/x/service/kanban"`, "3 ready, 2 capped", "<strong>3</strong> ready, <strong>1</strong> running, <strong>1</strong> blocked, <strong>7</strong> done", "1m30s",
			`<th scope="row">coder</th><td data-label="Running" class="number">1</td>`, "<code>t_2</code> build it", "crashed", "1m5s", "no key", "cannot open the board: it is broken",
		},
		"/sandboxes": {"debian:12", "running", "exited", "direct"},
	} {
		code, page := s.request("GET", path, nil)
		if code != http.StatusOK {
			t.Errorf("%s: %d", path, code)
		}
		for _, want := range wanted {
			if !strings.Contains(page, want) {
				t.Errorf("%s: there is no %s in\n%s", path, want, page)
			}
		}
		for _, bad := range []string{"<script>", "<img", key, "LABEL", "c0ffee"} {
			if strings.Contains(page, bad) {
				t.Errorf("%s shows %q", path, bad)
			}
		}
	}
}

func TestWhereThereAreNoBoards(t *testing.T) {
	missing := func(context.Context, string) ([]byte, error) {
		return nil, &fs.PathError{Op: "stat", Path: "hinit-kanban", Err: fs.ErrNotExist}
	}
	for name, o := range map[string]Options{
		"no programs": {}, "not installed": {Programs: Programs{Boards: missing, Sandboxes: missing}}, "no board": {Programs: Programs{Boards: programPrinting("[]\n")}},
	} {
		o.Hinit = newFakeHinit(coderGateway())
		s := startTestSite(t, o)
		if _, page := s.request("GET", "/", nil); strings.Contains(page, "/boards") || strings.Contains(page, "/sandboxes") {
			t.Errorf("%s: there are links in\n%s", name, page)
		}
		for _, path := range []string{"/boards", "/sandboxes"} {
			if code, _ := s.request("GET", path, nil); code != http.StatusNotFound {
				t.Errorf("%s: %s: %d", name, path, code)
			}
		}
	}
	s := startTestSite(t, Options{Hinit: newFakeHinit(coderGateway()), Token: testToken, Programs: Programs{Boards: programPrinting(boardsJSON)}})
	for _, path := range []string{"/boards", "/login"} {
		if _, page := s.request("GET", path, nil); strings.Contains(page, "build it") || strings.Contains(page, "/boards") {
			t.Errorf("%s without the token: %s", path, page)
		}
	}
}

// If a program fails or hangs, the page must show its last good output, and many readers must cause only one call at a time.
func TestAProgramThatFailsOrHangs(t *testing.T) {
	var asked, at, most atomic.Int32
	var how atomic.Pointer[string]
	set := func(s string) { how.Store(&s) }
	set("well")
	hang := make(chan struct{})
	b := programOutput{run: func(context.Context, string) ([]byte, error) {
		asked.Add(1)
		most.Store(max(most.Load(), at.Add(1)))
		defer at.Add(-1)
		switch *how.Load() {
		case "fails":
			return nil, errors.New("cannot ask hinit-kanban: no")
		case "hangs":
			<-hang
		}
		return []byte("text"), nil
	}}
	if got := b.cachedOrRun("", time.Hour, testkit.Patience); !got.exists || string(got.text) != "text" || got.fault != "" {
		t.Fatalf("%+v", got)
	}
	set("fails")
	if got := b.cachedOrRun("", 0, testkit.Patience); !got.exists || string(got.text) != "text" || got.fault != "cannot ask hinit-kanban: no" {
		t.Errorf("when it fails: %+v", got)
	}
	set("hangs")
	for range 10 {
		if got := b.cachedOrRun("", 0, time.Millisecond); string(got.text) != "text" || got.fault == "" {
			t.Errorf("when it hangs: %+v", got)
		}
	}
	close(hang)
	if got := b.cachedOrRun("", 0, testkit.Patience); got.fault != "" {
		t.Errorf("when it answers again: %+v", got)
	}
	if n := asked.Load(); n > 4 || most.Load() != 1 {
		t.Errorf("it was asked %d times, %d at a time", n, most.Load())
	}
}

func TestTheListHasWhatServicesUse(t *testing.T) {
	mine, other := coderGateway(), coderGateway()
	mine.PID = os.Getpid()
	other.Name, other.Profile = "a-tool", ""
	s := startTestSite(t, Options{Hinit: newFakeHinit(other, mine), Proc: func(client.Init) string { return "/proc" }})
	_, page := s.request("GET", "/?order=memory", nil)
	if !strings.Contains(page, ` MB</td>`) || strings.Index(page, "gateway-coder") > strings.Index(page, "a-tool") {
		t.Errorf("the memory of this process is not first:\n%s", page)
	}
	if _, page := s.request("GET", "/service/gateway-coder", nil); !strings.Contains(page, "<dt>Uses</dt>") {
		t.Errorf("there is no memory in\n%s", page)
	}
	if _, page := s.request("GET", "/service/a-tool", nil); strings.Contains(page, "<dt>Uses</dt>") {
		t.Errorf("what has no process uses something:\n%s", page)
	}
	_, page = s.request("GET", "/?by=profile", nil)
	at := -1
	for _, next := range []string{`data-key="coder"`, `data-name="gateway-coder"`, `data-key=""`, `data-name="a-tool"`} {
		i := strings.Index(page, next)
		if i <= at {
			t.Fatalf("%s is at %d, after %d:\n%s", next, i, at, page)
		}
		at = i
	}
	m := usageMeter{proc: func(client.Init) string { return "/proc" }}
	st := client.Status{Services: []client.Service{mine}}
	if got := m.measure(&st); got.cpuKnown || got.view("gateway-coder").CPU != "" || got.view("gateway-coder").Memory == "" {
		t.Errorf("at first: %+v", got)
	}
	m.at = m.at.Add(-measureInterval)
	if got := m.measure(&st); !got.cpuKnown || !strings.HasSuffix(got.view("gateway-coder").CPU, " %") {
		t.Errorf("then: %+v", got)
	}
	m.at = m.at.Add(-time.Hour)
	if got := m.measure(&st); got.cpuKnown {
		t.Errorf("after an hour: %+v", got)
	}
	m.proc = func(client.Init) string { return "" }
	m.at = m.at.Add(-measureInterval)
	if got := m.measure(&st); len(got.byName) != 0 {
		t.Errorf("where nothing is to be seen: %s", fmt.Sprint(got))
	}
}
