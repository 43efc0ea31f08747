package early

import (
	"os/signal"
	"testing"
)

// Only the init may catch signals before the runtime begins. Otherwise no signal could end a command.
func TestWhoListens(t *testing.T) {
	for _, c := range []struct {
		argv   []string
		listen bool
	}{
		{[]string{"/init"}, true},
		{[]string{"init", "gateway", "run"}, true},
		{[]string{"/usr/bin/tini", "--", "sh"}, true},
		{[]string{"/usr/bin/hinit", "init"}, true},
		{[]string{"hinit", "status", "init"}, false},
		{[]string{"s6-svwait", "init"}, false},
		{[]string{"hinit"}, false},
		{[]string{"xinit"}, false},
		{[]string{"it"}, false},
		{nil, false},
	} {
		got := listenIfInit(c.argv)
		if got != nil {
			signal.Stop(got)
		}
		if (got != nil) != c.listen {
			t.Errorf("%q listens: %v", c.argv, got != nil)
		}
	}
}
