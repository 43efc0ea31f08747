package control

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"hinit/client"
	"hinit/internal/testkit"
)

// The total size of answers to clients that don't read must have a limit.
func TestAnswersThatAreNotReadHaveABound(t *testing.T) {
	m := newAnswerBudgets()[0]
	total := 0
	var gives []func()
	for range 100 {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if give, err := m.reserve(ctx, &pendingAnswer{3 << 20, time.Now(), nil}); err == nil {
			total += 3 << 20
			gives = append(gives, give)
		}
	}
	if total == 0 || total > maxUnreadBytes {
		t.Errorf("%d bytes are held", total)
	}
	waits := make(chan error, 1)
	go func() {
		// An answer that exceeds the whole budget is allowed while no other answer is unread.
		give, err := m.reserve(t.Context(), &pendingAnswer{maxUnreadBytes * 2, time.Now(), nil})
		if err == nil {
			give()
		}
		waits <- err
	}()
	for _, give := range gives {
		give()
	}
	if err := <-waits; err != nil {
		t.Errorf("when all have read: %v", err)
	}
	if m.unreadBytes != 0 {
		t.Errorf("%d bytes are held at the end", m.unreadBytes)
	}
}

// The total size of the last log lines in the status must have a limit. The lines of 300 agents would be 18 MB, because JSON
// can make a byte six times as long.
func TestTheLastLinesOfManyAreShort(t *testing.T) {
	long := strings.Repeat("\x01", 500)
	list := make([]client.Service, 300)
	for i := range list {
		list[i].LastExit = &client.Exit{Tail: make([]string, 20)}
		for k := range list[i].LastExit.Tail {
			list[i].LastExit.Tail[k] = long
		}
	}
	few := list[:2]
	if shortenTails(few); len(few[0].LastExit.Tail) != 20 || len(few[0].LastExit.Tail[0]) != 500 {
		t.Error("those of two are shortened")
	}
	lines := list[7].LastExit.Tail
	shortenTails(list)
	out, err := okReply(list)
	if err != nil {
		t.Fatal(err)
	}
	if len(out.body) > 2<<20 || len(list[299].LastExit.Tail) != shortTailLines {
		t.Errorf("%d bytes, %d lines", len(out.body), len(list[299].LastExit.Tail))
	}
	if lines[19] != long {
		t.Error("the snapshot's own lines have changed")
	}
}

// Every GET must make its answer in turn, return one object, or write a few lines at a time. 120 clients that asked for long
// lists and read no answer used up the memory. A new route needs a row here.
func TestEveryListIsMadeInTurn(t *testing.T) {
	few := map[string]string{
		"GET /v1/runs/{id}": "one run", "GET /v1/slots/wait": "one slot", "GET /v1/events": "a batch at a time",
		"GET /v1/status/follow": "each line takes its turn", "GET /v1/health": "few names, or in turn",
	}
	queries := map[string]string{"GET /v1/status": "?name=gateway-a"}
	s := newServer(newFakeBackend(newGateway("a", "up")), readableByAll)
	who := peer{uid: 10000}
	s.answerBudgets[s.policy.classOf(who)].makingAnswer <- struct{}{}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for _, rt := range routes() {
		method, path, _ := strings.Cut(rt.pattern, " ")
		for _, query := range []string{"", queries[rt.pattern]} {
			r := httptest.NewRequestWithContext(gone, method, path+query, nil)
			r.SetPathValue("name", "gateway-a")
			ask := &request{Request: r, route: rt, client: who}
			if method != http.MethodGet || few[rt.pattern] != "" || ask.parseQuery() != nil {
				continue
			}
			if _, err := rt.handle(s, ask); !errors.Is(err, context.Canceled) {
				t.Errorf("%s%s does not wait for its turn: %v", rt.pattern, query, err)
			}
		}
	}
}

// A client that follows the runs must get them in batches. Then a client that does not read keeps no full list in memory.
func TestFollowedRunsComeInBatches(t *testing.T) {
	core := newFakeBackend()
	for i := range 3*maxEventBatch + 1 {
		core.runs = append(core.runs, client.Run{ID: strconv.Itoa(i), Seq: uint64(i + 1)})
	}
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	var got []string
	err := serve(t, core, readableByAll).client().FollowRuns(ctx, func(r client.Run) error {
		if got = append(got, r.ID); len(got) == len(core.runs) {
			return io.EOF
		}
		return nil
	})
	if !errors.Is(err, io.EOF) || len(got) != len(core.runs) || got[len(got)-1] != strconv.Itoa(3*maxEventBatch) {
		t.Errorf("%v: %d runs", err, len(got))
	}
}

// The answers to commands must be made in turn. 120 clients that ordered a start, a run or a reload without reading the answer
// held up to 250 kB each.
func TestAnswersToOrdersAreMadeInTurn(t *testing.T) {
	core := newFakeBackend(newGateway("a", "up"))
	s := newServer(core, readableByAll)
	who := peer{uid: 10000}
	turn := s.answerBudgets[s.policy.classOf(who)].makingAnswer
	for _, rt := range routes() {
		method, path, _ := strings.Cut(rt.pattern, " ")
		body := ""
		if strings.HasSuffix(path, "/restart") {
			body = `{"wait":false}`
		}
		ask := func(ctx context.Context) reply {
			r := httptest.NewRequestWithContext(context.WithValue(ctx, peerKey{}, who), method, path, strings.NewReader(body))
			r.SetPathValue("name", "gateway-a")
			return s.handle(rt, httptest.NewRecorder(), r)
		}
		first := ask(t.Context())
		if method != http.MethodPost || first.clientError != nil || len(first.body) == 0 {
			continue
		}
		if first.onSent == nil {
			t.Errorf("the answer to %s takes no room", rt.pattern)
			continue
		}
		first.onSent()
		turn <- struct{}{}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		if out := ask(ctx); out.clientError == nil {
			t.Errorf("%s does not wait for its turn: %s", rt.pattern, out.body)
		}
		cancel()
		<-turn
	}
}
