package profiles_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"hinit/profiles"
)

// TestBootPutsBackWhatAGatewayTookBack checks that the boot restores the last command if a gateway
// overwrote it just before the end.
func TestBootPutsBackWhatAGatewayTookBack(t *testing.T) {
	for name, tt := range map[string]struct {
		state   string        // Content that the gateway wrote.
		after   time.Duration // Time of that write, after the command.
		clock   time.Duration // How far the clock has advanced since.
		machine string        // Boot ID, if the machine has booted since.
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
		"the clock has gone back since": {state: `{"desired_state":"running"}`, after: -10 * 365 * 24 * time.Hour, clock: -10 * 365 * 24 * time.Hour, want: profiles.Stopped},
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
				file := "profiles/p/" + profiles.IntentFile
				profiles.Write(t, s, file, strings.Replace(profiles.Read(t, s, file), profiles.KernelBoot(), tt.machine, 1))
			}
			s.StepClock(tt.clock, 0)
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

// TestAClockThatIsSetDoesNotUndoAnOrder checks that a gateway's overwrite counts as an accident
// although the clock was set in between.
func TestAClockThatIsSetDoesNotUndoAnOrder(t *testing.T) {
	for _, tt := range []struct {
		step, passed time.Duration // How far the clock was set after the order, and how much time passed until the gateway wrote.
		looked       time.Duration // Time until hinit reads the file.
		lost         bool          // Whether the order was lost by accident.
	}{
		{time.Hour, 3 * time.Second, 0, true},
		{time.Hour, 3 * time.Second, time.Minute, true},
		{-time.Hour, 3 * time.Second, 0, true},
		{-time.Hour, 3 * time.Second, 2 * time.Minute, true},
		{time.Hour, time.Minute, 0, false},
		{-time.Hour, time.Minute, time.Minute, false},
		{0, time.Minute, time.Minute, false},
	} {
		for _, restarted := range []bool{false, true} {
			s := profiles.NewVolume(t)
			profiles.Write(t, s, "profiles/p/SOUL.md", "")
			in := profiles.NewIntents(s)
			if err := in.Set("p", profiles.Stopped); err != nil {
				t.Fatal(err)
			}
			file := "profiles/p/" + profiles.StateFile
			profiles.Write(t, s, file, `{"desired_state":"running"}`)
			at := time.Now().Add(tt.step + tt.passed)
			if err := os.Chtimes(filepath.Join(s.Root(), file), at, at); err != nil {
				t.Fatal(err)
			}
			s.StepClock(tt.step, tt.passed+tt.looked)
			if restarted {
				s.Reconcile(profiles.BootOptions{})
			} else if _, err := in.Restore("p", profiles.State{}); err != nil {
				t.Fatal(err)
			}
			if st, err := s.ReadState("p"); err != nil || (st.Desired == profiles.Stopped) != tt.lost {
				t.Errorf("%+v, container restarted: %v: the file says %s, %v", tt, restarted, st.Desired, err)
			}
		}
	}
}

// TestRecordThatCannotBeReplaced checks that an old record is removed if it can't be replaced. It
// would contradict the state file.
func TestRecordThatCannotBeReplaced(t *testing.T) {
	s := profiles.NewVolume(t)
	profiles.Write(t, s, profiles.IntentFile+"/full", "a directory where a file should be")
	if err := profiles.NewIntents(s).Set(profiles.Default, profiles.Stopped); err == nil {
		t.Error("no error")
	}
}
