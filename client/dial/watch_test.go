package dial_test

import (
	"errors"
	"fmt"
	"net/http"
	"testing"

	"hinit/client"
)

var errEnough = errors.New("enough")

// TestAnOlderHinitIsAskedAgainAndAgain: one that has no such route is followed all the same.
func TestAnOlderHinitIsAskedAgainAndAgain(t *testing.T) {
	asked := 0
	cl := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/status" {
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"error":{"kind":"bad-request","message":"no such endpoint"}}`)
			return
		}
		asked++
		fmt.Fprintf(w, `{"version":1,"init":{},"services":[{"name":"a","restarts":%d}]}`, asked)
	})
	var st client.Status
	err := cl.Watch(t.Context(), func(c client.StatusChange) error {
		c.Apply(&st)
		if st.Services[0].Restarts == 2 {
			return errEnough
		}
		return nil
	})
	if !errors.Is(err, errEnough) || len(st.Services) != 1 {
		t.Errorf("%v, %+v", err, st)
	}
}

// TestAChangeLeavesTheOldListAlone: who holds it goes on reading it, and a change of what is not there is none.
func TestAChangeLeavesTheOldListAlone(t *testing.T) {
	var st client.Status
	client.StatusChange{Whole: true, Init: client.Init{OOMFirst: "b"}, Services: []client.Service{{Name: "a"}, {Name: "b"}}}.Apply(&st)
	old := st.Services
	client.StatusChange{Init: client.Init{PID: 1}, Services: []client.Service{{Name: "b", State: "up"}, {Name: "c"}}}.Apply(&st)
	if old[1].State != "" || st.Services[1].State != "up" || len(st.Services) != 2 || st.Init.PID != 1 || st.Init.OOMFirst != "b" {
		t.Errorf("%+v, before %+v", st, old)
	}
}
