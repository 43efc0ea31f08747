package profiles_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"hinit/profiles"
)

// The boot must restore the last command if a gateway has overwritten it in the state file before everything was
// killed.
func TestBootPutsBackWhatAGatewayTookBack(t *testing.T) {
	for name, tt := range map[string]struct {
		state   string        // content that the gateway wrote
		after   time.Duration // time of that write, after the command
		clock   time.Duration // how far the clock has advanced since then
		machine string        // boot id, if the machine has booted since then
		want    string
	}{
		"another value, at once":        {state: `{"desired_state":"running","pid":1}`, after: time.Second, want: profiles.Stopped},
		"another value, from before":    {state: `{"desired_state":"running"}`, after: -time.Hour, want: profiles.Stopped},
		"another value, later":          {state: `{"desired_state":"running"}`, after: time.Minute, want: profiles.Running},
		"the key gone, later":           {state: `{"gateway_state":"running"}`, after: time.Minute, want: profiles.Stopped},
		"the same":                      {state: `{"desired_state":"stopped"}`, after: time.Second, want: profiles.Stopped},
		"no file any more":              {state: ``, want: "None"},
		"not readable":                  {state: `{`, want: "None"},
		"the machine was started anew":  {state: `{"desired_state":"running"}`, after: time.Second, machine: "x", want: profiles.Running},
		"the clock has gone back since": {state: `{"desired_state":"running"}`, after: -10 * 365 * 24 * time.Hour, clock: -10 * 365 * 24 * time.Hour, want: profiles.Running},
	} {
		t.Run(name, func(t *testing.T) {
			s := profiles.NewVolume(t)
			profiles.Write(t, s, "profiles/p/SOUL.md", "")
			if err := profiles.NewIntents(s).Set("p", profiles.Stopped); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(s.Root(), "profiles/p", profiles.StateFile)
			if tt.state == "" {
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
			} else {
				profiles.Write(t, s, "profiles/p/"+profiles.StateFile, tt.state)
				at := time.Now().Add(tt.after)
				if err := os.Chtimes(path, at, at); err != nil {
					t.Fatal(err)
				}
			}
			if tt.machine != "" {
				file := "profiles/p/" + profiles.AskedFile
				profiles.Write(t, s, file, strings.Replace(profiles.Read(t, s, file), profiles.KernelBoot(), tt.machine, 1))
			}
			s.SetClock(func() time.Time { return time.Now().Add(tt.clock) })
			p := s.Reconcile(profiles.BootOptions{})
			if got := p.Profiles[1].PriorState; got != tt.want || p.Profiles[1].Start != (tt.want == profiles.Running) {
				t.Errorf("decided %+v, want %s", p.Profiles[1], tt.want)
			}
			if st, err := s.ReadState("p"); err == nil && st.Exists && st.Desired != tt.want {
				t.Errorf("the disk says %+v, want %s", st, tt.want)
			}
		})
	}
}

// If an old record can't be replaced, it must be removed. Otherwise it would contradict the state file at the next
// boot.
func TestRecordThatCannotBeReplaced(t *testing.T) {
	s := profiles.NewVolume(t)
	profiles.Write(t, s, profiles.AskedFile+"/full", "a directory where a file should be")
	if err := profiles.NewIntents(s).Set(profiles.Default, profiles.Stopped); err == nil {
		t.Error("no error")
	}
}
