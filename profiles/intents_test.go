package profiles

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestRestore(t *testing.T) {
	at := time.Now().Add(-time.Hour)
	for name, tt := range map[string]struct {
		file    string        // what somebody wrote after the command; "" leaves it as the command wrote it
		written time.Duration // when, after the command
		looked  time.Duration // when it was noticed, after the command
		outcome Outcome
		want    string // desired state in the file in the end; "" unchanged from file
		asked   string // what Want says in the end
	}{
		"agrees":                   {"", 0, time.Second, Unchanged, Running, Running},
		"gateway kept it":          {`{"desired_state":"running","gateway_state":"starting"}`, time.Second, time.Second, Unchanged, Running, Running},
		"key lost":                 {`{"gateway_state":"running"}`, time.Second, time.Second, Restored, Running, Running},
		"key lost late":            {`{"gateway_state":"running"}`, time.Hour / 2, time.Hour / 2, Restored, Running, Running},
		"key null":                 {`{"desired_state":null}`, time.Hour / 2, time.Hour / 2, Restored, Running, Running},
		"value lost":               {`{"desired_state":"stopped"}`, 9 * time.Second, 9 * time.Second, Restored, Running, Running},
		"value lost, noticed late": {`{"desired_state":"stopped"}`, 9 * time.Second, time.Minute, Restored, Running, Running},
		"changed by somebody":      {`{"desired_state":"stopped"}`, 11 * time.Second, 11 * time.Second, Adopted, Stopped, Stopped},
		"old file put there late":  {`{"desired_state":"stopped"}`, -time.Hour, time.Minute, Adopted, Stopped, Stopped},
		"time from the future":     {`{"desired_state":"stopped"}`, 24 * time.Hour, time.Second, Restored, Running, Running},
		"future, noticed late":     {`{"desired_state":"stopped"}`, 24 * time.Hour, time.Minute, Adopted, Stopped, Stopped},
		"clock of another machine": {`{"desired_state":"stopped"}`, -time.Second, time.Minute, Restored, Running, Running},
		"odd value, early":         {`{"desired_state":"paused"}`, time.Second, time.Second, Restored, Running, Running},
		"odd value, late":          {`{"desired_state":"paused"}`, time.Minute, time.Minute, Adopted, "paused", ""},
		"file is corrupt":          {`{"desired_st`, time.Minute, time.Minute, Restored, Running, Running},
		"file is gone":             {"gone", time.Minute, time.Minute, Restored, Running, Running},
	} {
		t.Run(name, func(t *testing.T) {
			s := newVolume(t)
			now := at
			s.now = func() time.Time { return now }
			write(t, s, "profiles/p/gateway_state.json", observedState)
			path := filepath.Join(s.root, "profiles/p/gateway_state.json")
			in := NewIntents(s)
			if err := in.Set("p", Running); err != nil {
				t.Fatal(err)
			}
			switch tt.file {
			case "":
			case "gone":
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
			default:
				write(t, s, "profiles/p/gateway_state.json", tt.file)
				if err := os.Chtimes(path, time.Time{}, at.Add(tt.written)); err != nil {
					t.Fatal(err)
				}
			}
			now = at.Add(tt.looked)
			seen, _ := s.ReadState("p")
			got, err := in.Restore("p", seen)
			if tt.file == "gone" {
				if got != Missing || err != nil {
					t.Errorf("a file that has just been removed: %v, %v", got, err)
				}
				now = now.Add(RestoreDelay - 1)
				if got, err := in.Restore("p", seen); got != Missing || err != nil {
					t.Errorf("a moment later: %v, %v", got, err)
				}
				now = now.Add(1)
				got, err = in.Restore("p", seen)
			}
			if err != nil || got != tt.outcome {
				t.Errorf("Restore = %v, %v, want %v", got, err, tt.outcome)
			}
			if st, err := s.ReadState("p"); err != nil || st.Desired != tt.want {
				t.Errorf("in the file %q, %v, want %q", st.Desired, err, tt.want)
			}
			if asked, ok := in.Want("p"); asked != tt.asked || ok != (tt.asked != "") {
				t.Errorf("Want = %q, %t, want %q", asked, ok, tt.asked)
			}
			seen, _ = s.ReadState("p")
			if again, err := in.Restore("p", seen); again != Unchanged || err != nil {
				t.Errorf("a second Restore = %v, %v", again, err)
			}
		})
	}
}

func TestRestoreWithoutIntent(t *testing.T) {
	s := newVolume(t)
	write(t, s, stateFile, `{"gateway_state":"running"}`)
	in := NewIntents(s)
	if got, err := in.Restore(Default, State{}); got != Unchanged || err != nil {
		t.Errorf("Restore = %v, %v", got, err)
	}
	if got := read(t, s, stateFile); got != `{"gateway_state":"running"}` {
		t.Errorf("file is %q", got)
	}
	in.Note(Default, Stopped)
	if got, err := in.Restore(Default, State{HasGateway: true}); got != Restored || err != nil {
		t.Errorf("after Note: %v, %v", got, err)
	}
	in.Forget(Default)
	if want, ok := in.Want(Default); ok {
		t.Errorf("still wants %q", want)
	}
}

func TestRestoreStaleLook(t *testing.T) {
	s := newVolume(t)
	in := NewIntents(s)
	if err := in.Set(Default, Stopped); err != nil {
		t.Fatal(err)
	}
	before := read(t, s, stateFile)
	// What was seen is from before the command.
	if got, err := in.Restore(Default, State{Exists: true, HasDesired: true, Desired: Running}); got != Unchanged || err != nil {
		t.Errorf("Restore = %v, %v", got, err)
	}
	if after := read(t, s, stateFile); after != before {
		t.Errorf("rewritten: %q", after)
	}
}

func TestSetThatFails(t *testing.T) {
	s := newVolume(t)
	in := NewIntents(s)
	if err := in.Set("nobody", Running); !errors.Is(err, ErrNotExist) {
		t.Errorf("missing profile: %v", err)
	}
	if err := in.Set(Default, "paused"); err == nil {
		t.Error("impossible state")
	}
	for _, name := range []string{"nobody", Default} {
		if want, ok := in.Want(name); ok {
			t.Errorf("%s: remembers %q", name, want)
		}
	}

	// The file can't be written now, and can be later: the intent comes into force then.
	path := filepath.Join(s.root, stateFile)
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := in.Set(Default, Stopped); err == nil {
		t.Fatal("a directory was replaced")
	}
	if _, err := in.Restore(Default, State{}); err == nil {
		t.Error("no error while it can't be written")
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	write(t, s, stateFile, `{"desired_state":"running"}`)
	seen, _ := s.ReadState(Default)
	if got, err := in.Restore(Default, seen); got != Restored || err != nil {
		t.Errorf("Restore = %v, %v", got, err)
	}
	if st, _ := s.ReadState(Default); st.Desired != Stopped {
		t.Errorf("state %+v", st)
	}
}

func TestAnIntentThatIsNotSyncedYetSurvivesTheEndOfHinit(t *testing.T) {
	s := newVolume(t)
	write(t, s, stateFile, `{"desired_state":"running"}`)
	in := NewIntents(s)
	sync, err := in.Begin(Default, Stopped)
	if err != nil {
		t.Fatal(err)
	}
	if want, ok := in.Want(Default); want != Stopped || !ok {
		t.Errorf("Want = %q, %t", want, ok)
	}
	st, err := s.ReadState(Default) // all that the next hinit has
	if err != nil || st.Desired != Stopped {
		t.Errorf("before it is synced the next boot goes by %+v, %v", st, err)
	}
	if got, err := in.Restore(Default, st); got != Unchanged || err != nil {
		t.Errorf("an intent that is about to be synced counts as lost: %v, %v", got, err)
	}
	// What the gateway says of itself from now on stays.
	write(t, s, stateFile, `{"desired_state":"stopped","pid":7}`)
	if err := sync(); err != nil {
		t.Fatal(err)
	}
	if st, _ := s.ReadState(Default); st.Desired != Stopped || st.PID != 7 {
		t.Errorf("state %+v", st)
	}
	write(t, s, stateFile, `{"desired_state":"running"}`)
	seen, _ := s.ReadState(Default)
	if got, err := in.Restore(Default, seen); got != Restored || err != nil {
		t.Errorf("lost afterwards: %v, %v", got, err)
	}
	if err := os.Remove(filepath.Join(s.root, stateFile)); err != nil {
		t.Fatal(err)
	}
	if err := sync(); err != nil {
		t.Errorf("a file that is gone can't be synced: %v", err)
	}
}

func TestRestoreProfileGone(t *testing.T) {
	s := newVolume(t)
	write(t, s, "profiles/p/SOUL.md", "")
	in := NewIntents(s)
	if err := in.Set("p", Running); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(s.root, "profiles/p")); err != nil {
		t.Fatal(err)
	}
	if got, err := in.Restore("p", State{}); got != Unchanged || err != nil || exists(t, s, "profiles/p") {
		t.Errorf("Restore = %v, %v", got, err)
	}
}

// TestAGatewayTakesBackARecordThatTheDiskHeldUp: the time of the command was that at which it was given, so that ten seconds later, on a
// disk that had not written it yet, a gateway's rewrite with the old value counted as somebody's intent.
func TestAGatewayTakesBackARecordThatTheDiskHeldUp(t *testing.T) {
	s := newVolume(t)
	given := time.Now().Add(-time.Hour)
	written := given.Add(time.Minute)
	asked := 0
	s.now = func() time.Time {
		if asked++; asked == 1 {
			return given
		}
		return written
	}
	write(t, s, "profiles/p/gateway_state.json", observedState)
	in := NewIntents(s)
	if err := in.Set("p", Stopped); err != nil {
		t.Fatal(err)
	}
	rewrite := func() {
		write(t, s, "profiles/p/gateway_state.json", `{"desired_state":"running"}`)
		at := written.Add(5 * time.Second)
		if err := os.Chtimes(filepath.Join(s.root, "profiles/p/gateway_state.json"), at, at); err != nil {
			t.Fatal(err)
		}
		s.now = func() time.Time { return at }
	}
	rewrite()
	if outcome, err := in.Restore("p", State{}); err != nil || outcome != Restored {
		t.Errorf("it was %s, %v", outcome, err)
	}
	// The container was killed before it was seen.
	rewrite()
	plan := s.Reconcile(BootOptions{})
	for _, d := range plan.Profiles {
		if d.Profile.Name == "p" && d.Start {
			t.Error("the boot starts it")
		}
	}
}
