package profiles_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"hinit/profiles"
)

func TestRestore(t *testing.T) {
	at := time.Now().Add(-time.Hour)
	for name, tt := range map[string]struct {
		file    string        // Content that another process wrote after the command; "" leaves the file unchanged.
		written time.Duration // How long after the command the other process wrote the file.
		looked  time.Duration // How long after the command hinit noticed the write.
		outcome profiles.Outcome
		want    string // Expected desired state in the file; "" if it must not change.
		asked   string // Expected result of LastOrder.
	}{
		"agrees":                   {"", 0, time.Second, profiles.Unchanged, profiles.Running, profiles.Running},
		"gateway kept it":          {`{"desired_state":"running","gateway_state":"starting"}`, time.Second, time.Second, profiles.Unchanged, profiles.Running, profiles.Running},
		"key lost":                 {`{"gateway_state":"running"}`, time.Second, time.Second, profiles.Restored, profiles.Running, profiles.Running},
		"key lost late":            {`{"gateway_state":"running"}`, time.Hour / 2, time.Hour / 2, profiles.Restored, profiles.Running, profiles.Running},
		"key null":                 {`{"desired_state":null}`, time.Hour / 2, time.Hour / 2, profiles.Restored, profiles.Running, profiles.Running},
		"value lost":               {`{"desired_state":"stopped"}`, 9 * time.Second, 9 * time.Second, profiles.Restored, profiles.Running, profiles.Running},
		"value lost, noticed late": {`{"desired_state":"stopped"}`, 9 * time.Second, time.Minute, profiles.Restored, profiles.Running, profiles.Running},
		"changed by somebody":      {`{"desired_state":"stopped"}`, 11 * time.Second, 11 * time.Second, profiles.Adopted, profiles.Stopped, profiles.Stopped},
		"old file put there late":  {`{"desired_state":"stopped"}`, -time.Hour, time.Minute, profiles.Adopted, profiles.Stopped, profiles.Stopped},
		"time from the future":     {`{"desired_state":"stopped"}`, 24 * time.Hour, time.Second, profiles.Restored, profiles.Running, profiles.Running},
		"future, noticed late":     {`{"desired_state":"stopped"}`, 24 * time.Hour, time.Minute, profiles.Adopted, profiles.Stopped, profiles.Stopped},
		"clock of another machine": {`{"desired_state":"stopped"}`, -time.Second, time.Minute, profiles.Restored, profiles.Running, profiles.Running},
		"odd value, early":         {`{"desired_state":"paused"}`, time.Second, time.Second, profiles.Restored, profiles.Running, profiles.Running},
		"odd value, late":          {`{"desired_state":"paused"}`, time.Minute, time.Minute, profiles.Adopted, "paused", ""},
		"file is corrupt":          {`{"desired_st`, time.Minute, time.Minute, profiles.Restored, profiles.Running, profiles.Running},
		"file is too large":        {`{"desired_state":"stopped","x":"` + strings.Repeat("x", profiles.MaxState) + `"}`, time.Minute, time.Minute, profiles.Restored, profiles.Running, profiles.Running},
		"file is gone":             {"gone", time.Minute, time.Minute, profiles.Restored, profiles.Running, profiles.Running},
	} {
		t.Run(name, func(t *testing.T) {
			s := profiles.NewVolume(t)
			now := at
			s.SetClock(func() time.Time { return now })
			profiles.Write(t, s, "profiles/p/gateway_state.json", profiles.ObservedState)
			path := filepath.Join(s.Root(), "profiles/p/gateway_state.json")
			in := profiles.NewIntents(s)
			if err := in.Set("p", profiles.Running); err != nil {
				t.Fatal(err)
			}
			switch tt.file {
			case "":
			case "gone":
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
			default:
				profiles.Write(t, s, "profiles/p/gateway_state.json", tt.file)
				if err := os.Chtimes(path, time.Time{}, at.Add(tt.written)); err != nil {
					t.Fatal(err)
				}
			}
			now = at.Add(tt.looked)
			seen, _ := s.ReadState("p")
			got, err := in.Restore("p", seen)
			if tt.file == "gone" {
				if got != profiles.Missing || err != nil {
					t.Errorf("a file that has just been removed: %v, %v", got, err)
				}
				now = now.Add(profiles.RestoreDelay - 1)
				if got, err := in.Restore("p", seen); got != profiles.Missing || err != nil {
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
			if asked, ok := in.LastOrder("p"); asked != tt.asked || ok != (tt.asked != "") {
				t.Errorf("Want = %q, %t, want %q", asked, ok, tt.asked)
			}
			seen, _ = s.ReadState("p")
			if again, err := in.Restore("p", seen); again != profiles.Unchanged || err != nil {
				t.Errorf("a second Restore = %v, %v", again, err)
			}
		})
	}
}

func TestRestoreWithoutIntent(t *testing.T) {
	s := profiles.NewVolume(t)
	profiles.Write(t, s, profiles.StateFile, `{"gateway_state":"running"}`)
	in := profiles.NewIntents(s)
	if got, err := in.Restore(profiles.Default, profiles.State{}); got != profiles.Unchanged || err != nil {
		t.Errorf("Restore = %v, %v", got, err)
	}
	if got := profiles.Read(t, s, profiles.StateFile); got != `{"gateway_state":"running"}` {
		t.Errorf("file is %q", got)
	}
	in.RecordExternal(profiles.Default, profiles.Stopped)
	if got, err := in.Restore(profiles.Default, profiles.State{HasGateway: true}); got != profiles.Restored || err != nil {
		t.Errorf("after Note: %v, %v", got, err)
	}
	in.ForgetOrder(profiles.Default)
	if want, ok := in.LastOrder(profiles.Default); ok {
		t.Errorf("still wants %q", want)
	}
}

func TestRestoreStaleScan(t *testing.T) {
	s := profiles.NewVolume(t)
	in := profiles.NewIntents(s)
	if err := in.Set(profiles.Default, profiles.Stopped); err != nil {
		t.Fatal(err)
	}
	before := profiles.Read(t, s, profiles.StateFile)
	// Restore gets content that was read before the command.
	if got, err := in.Restore(profiles.Default, profiles.State{Exists: true, HasDesired: true, Desired: profiles.Running}); got != profiles.Unchanged || err != nil {
		t.Errorf("Restore = %v, %v", got, err)
	}
	if after := profiles.Read(t, s, profiles.StateFile); after != before {
		t.Errorf("rewritten: %q", after)
	}
}

func TestSetThatFails(t *testing.T) {
	s := profiles.NewVolume(t)
	in := profiles.NewIntents(s)
	if err := in.Set("nobody", profiles.Running); !errors.Is(err, profiles.ErrNotExist) {
		t.Errorf("missing profile: %v", err)
	}
	if err := in.Set(profiles.Default, "paused"); err == nil {
		t.Error("impossible state")
	}
	for _, name := range []string{"nobody", profiles.Default} {
		if want, ok := in.LastOrder(name); ok {
			t.Errorf("%s: remembers %q", name, want)
		}
	}

	// If the file can't be written now, the intent must be written later.
	path := filepath.Join(s.Root(), profiles.StateFile)
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := in.Set(profiles.Default, profiles.Stopped); err == nil {
		t.Fatal("a directory was replaced")
	}
	if _, err := in.Restore(profiles.Default, profiles.State{}); err == nil {
		t.Error("no error while it can't be written")
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	profiles.Write(t, s, profiles.StateFile, `{"desired_state":"running"}`)
	seen, _ := s.ReadState(profiles.Default)
	if got, err := in.Restore(profiles.Default, seen); got != profiles.Restored || err != nil {
		t.Errorf("Restore = %v, %v", got, err)
	}
	if st, _ := s.ReadState(profiles.Default); st.Desired != profiles.Stopped {
		t.Errorf("state %+v", st)
	}
}

// TestAnOrderThatTheVolumeHasAlreadyNeedsNoRecord checks that a start succeeds on a full disk if
// the disk already records it.
func TestAnOrderThatTheVolumeHasAlreadyNeedsNoRecord(t *testing.T) {
	s := profiles.NewVolume(t)
	in := profiles.NewIntents(s)
	full := errors.New("no space left on device")
	order := func(want string) error {
		writes := 0
		in.CheckWrite = func() error { // The first call checks before the intent is written, so it succeeds.
			writes++
			return map[bool]error{true: full}[writes > 1]
		}
		return in.Set(profiles.Default, want)
	}
	profiles.Write(t, s, profiles.StateFile, `{"desired_state":"running"}`)
	if err := order(profiles.Running); err != nil || len(in.Pending()) > 0 {
		t.Errorf("what the disk has: %v, pending %q", err, in.Pending())
	}
	if err := order(profiles.Stopped); !errors.Is(err, full) || len(in.Pending()) == 0 {
		t.Errorf("another state: %v, pending %q", err, in.Pending())
	}
}

// TestAnUnwrittenStopIsNotReportedAsRecorded checks that an unwritten stop is not
// reported as recorded while an older record would start the gateway.
func TestAnUnwrittenStopIsNotReportedAsRecorded(t *testing.T) {
	s := profiles.NewVolume(t)
	in := profiles.NewIntents(s)
	if err := in.Set(profiles.Default, profiles.Running); err != nil {
		t.Fatal(err)
	}
	profiles.Write(t, s, profiles.StateFile, `{"desired_state":"stopped"}`)
	readOnly, writes := errors.New("read-only file system"), 0
	in.CheckWrite = func() error { // The first call checks before the intent is written, so it succeeds.
		writes++
		return map[bool]error{true: readOnly}[writes > 1]
	}
	if err := in.Set(profiles.Default, profiles.Stopped); !errors.Is(err, readOnly) || len(in.Pending()) == 0 {
		t.Errorf("the stop counts as recorded: %v, pending %q", err, in.Pending())
	}
	if plan := s.Reconcile(profiles.BootOptions{}); !plan.Profiles[0].Start {
		t.Error("the next boot does not start the gateway, so the order could count as recorded")
	}
}

// TestAnUnsyncedStopIsNotReportedAsMissing checks the answer to a stop that is
// written but not synced.
func TestAnUnsyncedStopIsNotReportedAsMissing(t *testing.T) {
	s := profiles.NewVolume(t)
	profiles.Write(t, s, profiles.StateFile, `{"desired_state":"running"}`)
	sync, err := profiles.NewIntents(s).Record(profiles.Default, profiles.Stopped)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(s.Root()); err != nil {
		t.Fatal(err)
	}
	if err := sync(); err == nil || errors.Is(err, profiles.ErrNotRecorded) || !strings.Contains(err.Error(), "may be undone by a crash of the machine") {
		t.Errorf("the disk has not confirmed the record: %v", err)
	}
}

func TestAnIntentThatIsNotSyncedYetSurvivesTheEndOfHinit(t *testing.T) {
	s := profiles.NewVolume(t)
	profiles.Write(t, s, profiles.StateFile, `{"desired_state":"running"}`)
	in := profiles.NewIntents(s)
	sync, err := in.Record(profiles.Default, profiles.Stopped)
	if err != nil {
		t.Fatal(err)
	}
	if want, ok := in.LastOrder(profiles.Default); want != profiles.Stopped || !ok {
		t.Errorf("Want = %q, %t", want, ok)
	}
	st, err := s.ReadState(profiles.Default) // ReadState reads the files, which are all that the next hinit knows.
	if err != nil || st.Desired != profiles.Stopped {
		t.Errorf("before it is synced the next boot goes by %+v, %v", st, err)
	}
	if got, err := in.Restore(profiles.Default, st); got != profiles.Unchanged || err != nil {
		t.Errorf("an intent that is about to be synced counts as lost: %v, %v", got, err)
	}
	// The gateway writes its state, which hinit must keep.
	profiles.Write(t, s, profiles.StateFile, `{"desired_state":"stopped","pid":7}`)
	if err := sync(); err != nil {
		t.Fatal(err)
	}
	if st, _ := s.ReadState(profiles.Default); st.Desired != profiles.Stopped || st.PID != 7 {
		t.Errorf("state %+v", st)
	}
	profiles.Write(t, s, profiles.StateFile, `{"desired_state":"running"}`)
	seen, _ := s.ReadState(profiles.Default)
	if got, err := in.Restore(profiles.Default, seen); got != profiles.Restored || err != nil {
		t.Errorf("lost afterwards: %v, %v", got, err)
	}
	if err := os.Remove(filepath.Join(s.Root(), profiles.StateFile)); err != nil {
		t.Fatal(err)
	}
	if err := sync(); err != nil {
		t.Errorf("a file that is gone can't be synced: %v", err)
	}
}

func TestRestoreProfileGone(t *testing.T) {
	s := profiles.NewVolume(t)
	profiles.Write(t, s, "profiles/p/SOUL.md", "")
	in := profiles.NewIntents(s)
	if err := in.Set("p", profiles.Running); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(s.Root(), "profiles/p")); err != nil {
		t.Fatal(err)
	}
	if got, err := in.Restore("p", profiles.State{}); got != profiles.Unchanged || err != nil || profiles.Exists(t, s, "profiles/p") {
		t.Errorf("Restore = %v, %v", got, err)
	}
}

// TestAGatewayTakesBackARecordThatTheDiskHeldUp checks that an intent counts from the end of its
// write. A gateway's rewrite in between must not count as a new intent.
func TestAGatewayTakesBackARecordThatTheDiskHeldUp(t *testing.T) {
	s := profiles.NewVolume(t)
	given := time.Now().Add(-time.Hour)
	written := given.Add(time.Minute)
	asked := 0
	s.SetClock(func() time.Time {
		if asked++; asked == 1 {
			return given
		}
		return written
	})
	profiles.Write(t, s, "profiles/p/gateway_state.json", profiles.ObservedState)
	in := profiles.NewIntents(s)
	if err := in.Set("p", profiles.Stopped); err != nil {
		t.Fatal(err)
	}
	rewrite := func() {
		profiles.Write(t, s, "profiles/p/gateway_state.json", `{"desired_state":"running"}`)
		at := written.Add(5 * time.Second)
		if err := os.Chtimes(filepath.Join(s.Root(), "profiles/p/gateway_state.json"), at, at); err != nil {
			t.Fatal(err)
		}
		s.SetClock(func() time.Time { return at })
	}
	rewrite()
	if outcome, err := in.Restore("p", profiles.State{}); err != nil || outcome != profiles.Restored {
		t.Errorf("it was %s, %v", outcome, err)
	}
	// The container was killed before hinit saw the rewrite.
	rewrite()
	plan := s.Reconcile(profiles.BootOptions{})
	for _, d := range plan.Profiles {
		if d.Profile.Name == "p" && d.Start {
			t.Error("the boot starts it")
		}
	}
}
