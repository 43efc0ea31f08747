package container

import (
	"testing"
	"time"

	"hinit/profiles"
)

// A profile that did not answer at the boot starts when it appears, if it ran before; one that is made later does not.
func TestAProfileThatAnswersLateIsStarted(t *testing.T) {
	started := time.Now()
	ran := profiles.State{Exists: true, HasDesired: true, Desired: profiles.Running, Written: started.Add(-time.Hour)}
	stopped, younger := ran, ran
	stopped.Desired, younger.Written = profiles.Stopped, started.Add(time.Second)
	l := late{names: map[string]bool{"a": true, "b": true, "c": true}}
	for _, c := range []struct {
		profile string
		state   profiles.State
		want    bool
	}{
		{"a", ran, true}, {"a", ran, false}, {"b", stopped, false}, {"c", younger, false}, {"d", ran, false},
	} {
		if got := l.start(c.profile, c.state, started); got != c.want {
			t.Errorf("%s: %v, want %v", c.profile, got, c.want)
		}
	}
	l = late{all: true}
	if !l.start("a", ran, started) || l.start("b", stopped, started) {
		t.Error("a volume that was not read at all")
	}
}
