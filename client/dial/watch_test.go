package dial_test

import (
	"testing"

	"hinit/client"
)

// TestAChangeLeavesTheOldListAlone checks that applying a change does not modify a list that a
// reader still uses.
func TestAChangeLeavesTheOldListAlone(t *testing.T) {
	var st client.Status
	client.StatusChange{IsComplete: true, Init: client.Init{FirstOOMVictim: "b"}, Services: []client.Service{{Name: "a"}, {Name: "b"}}}.Apply(&st)
	old := st.Services
	client.StatusChange{Init: client.Init{PID: 1}, Services: []client.Service{{Name: "b", State: "up"}, {Name: "c"}}}.Apply(&st)
	if old[1].State != "" || st.Services[1].State != "up" || len(st.Services) != 2 || st.Init.PID != 1 || st.Init.FirstOOMVictim != "b" {
		t.Errorf("%+v, before %+v", st, old)
	}
}
