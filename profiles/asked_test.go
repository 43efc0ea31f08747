package profiles

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A gateway has written the state file after the last command, and then everything was killed.
func TestBootPutsBackWhatAGatewayTookBack(t *testing.T) {
	for name, tt := range map[string]struct {
		state   string        // what the gateway wrote
		after   time.Duration // how long after the command
		clock   time.Duration // how far the clock has gone since
		machine string        // another boot of the machine
		want    string
	}{
		"another value, at once":        {state: `{"desired_state":"running","pid":1}`, after: time.Second, want: Stopped},
		"another value, from before":    {state: `{"desired_state":"running"}`, after: -time.Hour, want: Stopped},
		"another value, later":          {state: `{"desired_state":"running"}`, after: time.Minute, want: Running},
		"the key gone, later":           {state: `{"gateway_state":"running"}`, after: time.Minute, want: Stopped},
		"the same":                      {state: `{"desired_state":"stopped"}`, after: time.Second, want: Stopped},
		"no file any more":              {state: ``, want: "None"},
		"not readable":                  {state: `{`, want: "None"},
		"the machine was started anew":  {state: `{"desired_state":"running"}`, after: time.Second, machine: "x", want: Running},
		"the clock has gone back since": {state: `{"desired_state":"running"}`, after: -10 * 365 * 24 * time.Hour, clock: -10 * 365 * 24 * time.Hour, want: Running},
	} {
		t.Run(name, func(t *testing.T) {
			s := newVolume(t)
			write(t, s, "profiles/p/SOUL.md", "")
			if err := NewIntents(s).Set("p", Stopped); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(s.root, "profiles/p", stateFile)
			if tt.state == "" {
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
			} else {
				write(t, s, "profiles/p/"+stateFile, tt.state)
				at := time.Now().Add(tt.after)
				if err := os.Chtimes(path, at, at); err != nil {
					t.Fatal(err)
				}
			}
			if tt.machine != "" {
				file := "profiles/p/" + askedFile
				write(t, s, file, strings.Replace(read(t, s, file), kernelBoot(), tt.machine, 1))
			}
			s.now = func() time.Time { return time.Now().Add(tt.clock) }
			p := s.Reconcile(BootOptions{})
			if got := p.Profiles[1].PriorState; got != tt.want || p.Profiles[1].Start != (tt.want == Running) {
				t.Errorf("decided %+v, want %s", p.Profiles[1], tt.want)
			}
			if st, err := s.ReadState("p"); err == nil && st.Exists && st.Desired != tt.want {
				t.Errorf("the disk says %+v, want %s", st, tt.want)
			}
		})
	}
}

// An old record that can't be replaced would speak against the state file at the next boot.
func TestRecordThatCannotBeReplaced(t *testing.T) {
	s := newVolume(t)
	write(t, s, askedFile+"/full", "a directory where a file should be")
	if err := NewIntents(s).Set(Default, Stopped); err == nil {
		t.Error("no error")
	}
}
