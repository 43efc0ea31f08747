package guard_test

import (
	"strings"
	"testing"
	"time"

	"hinit/internal/guard"
)

func TestPanicOfAGoroutineIsReported(t *testing.T) {
	type report struct {
		doing string
		value any
		stack string
	}
	reports := make(chan report, 3)
	guard.SetPanicHandler(func(doing string, value any, stack []byte) { reports <- report{doing, value, string(stack)} })
	defer guard.SetPanicHandler(nil)

	guard.Go("work", func() { panic("broken") })
	time.AfterFunc(0, guard.WrapFunc("later work", func() { panic("broken later") }))
	for range 2 {
		select {
		case r := <-reports:
			want := map[string]any{"work": "broken", "later work": "broken later"}[r.doing]
			if r.value != want || !strings.Contains(r.stack, "TestPanicOfAGoroutineIsReported") {
				t.Errorf("reported %q: %v\n%s", r.doing, r.value, r.stack)
			}
		case <-time.After(40 * time.Second):
			t.Fatal("the handler was not told")
		}
	}
}

func TestWithoutHandlerAPanicGoesOn(t *testing.T) {
	defer func() {
		if p := recover(); p != "broken" {
			t.Errorf("recovered %v", p)
		}
	}()
	guard.WrapFunc("work", func() { panic("broken") })()
	t.Error("the panic was swallowed")
}

func TestTheEndOfAGoroutineIsSeenAlsoAfterAPanic(t *testing.T) {
	guard.SetPanicHandler(func(string, any, []byte) {})
	defer guard.SetPanicHandler(nil)
	for _, work := range []func(){func() {}, func() { panic("broken") }} {
		select {
		case <-guard.GoWithDone("work", work):
		case <-time.After(40 * time.Second):
			t.Fatal("nobody saw the end")
		}
	}
}
