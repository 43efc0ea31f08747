package record

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

func TestReplaceFollowsTheLinkAndKeepsTheMode(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	target, link := filepath.Join(other, "target"), filepath.Join(dir, "link")
	if err := os.WriteFile(target, []byte("old"), 0o604); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(target, 0o604); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
	if err := ReplaceFile(link, []byte("new"), 0o600, ".temp_*"); err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(link)
	if err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link is no link any more: %v %v", info, err)
	}
	info, err = os.Stat(target)
	if err != nil || info.Mode().Perm() != 0o604 {
		t.Errorf("the target: %v %v", info, err)
	}
	if data, err := os.ReadFile(target); err != nil || string(data) != "new" {
		t.Errorf("the target holds %q: %v", data, err)
	}
	if err := ReplaceFile(filepath.Join(dir, "no", "where"), nil, 0o600, ".temp_*"); err == nil {
		t.Error("a file was written into a directory that is not there")
	}
}

func TestUpdateStateStartsOverWhatIsNoObject(t *testing.T) {
	for _, content := range []string{"", "{", "[1]", "null", "7"} {
		home := t.TempDir()
		path := filepath.Join(home, "gateway_state.json")
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := UpdateState(home, map[string]any{"gateway_state": StateRunning}); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(path)
		var state map[string]any
		if err != nil || json.Unmarshal(data, &state) != nil || state["gateway_state"] != "running" || len(state) != 2 {
			t.Errorf("%q became %q: %v", content, data, err)
		}
	}
}

func TestAliveTellsThePidApartFromItsFormerOwner(t *testing.T) {
	self := CurrentProcess()
	if !self.Alive() {
		t.Error("this process is not alive")
	}
	earlier := *self.StartTime - 1
	for name, id := range map[string]Identity{
		"former owner":                 {PID: self.PID, StartTime: &earlier},
		"unknown start and no gateway": {PID: self.PID},
		"nobody":                       {PID: 1 << 30},
		"a process group":              {PID: -1},
		"zero":                         {},
	} {
		if id.Alive() {
			t.Errorf("%s is alive", name)
		}
	}
}

func TestLockHasOneHolder(t *testing.T) {
	home := t.TempDir()
	self := CurrentProcess()
	lock, err := LockGateway(home, self)
	if err != nil {
		t.Fatal(err)
	}
	_, err = LockGateway(home, self)
	if locked := (*LockedError)(nil); !errors.As(err, &locked) || locked.Owner.PID != self.PID {
		t.Errorf("the second lock: %v", err)
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := LockGateway(home, self)
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
}

func TestPIDFileOfAnotherIsKept(t *testing.T) {
	home := t.TempDir()
	self := CurrentProcess()
	for range 2 { // In the second round, the file is stale.
		if err := WritePID(home, self); err != nil {
			t.Fatal(err)
		}
	}
	if err := RemovePID(home, self.PID+1); err != nil {
		t.Fatal(err)
	}
	if id, alive := RunningGateway(home); !alive || id.PID != self.PID {
		t.Errorf("somebody else removed it: %+v %t", id, alive)
	}
	if err := RemovePID(home, self.PID); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(pidPath(home)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
}

func TestMarkerForSomebodyElseIsLeft(t *testing.T) {
	home := t.TempDir()
	self := CurrentProcess()
	other := Identity{PID: self.PID + 1}
	if err := PlannedStopMarker.Write(home, other); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(home, string(PlannedStopMarker)))
	if err != nil || !bytes.Contains(data, []byte(`"target_start_time":null,"stopper_pid":`)) {
		t.Errorf("the marker is %s: %v", data, err)
	}
	if PlannedStopMarker.Consume(home, self) {
		t.Error("it was taken by the wrong process")
	}
	if TakeoverMarker.Consume(home, other) {
		t.Error("it was taken for the other kind")
	}
	if !PlannedStopMarker.Consume(home, other) || PlannedStopMarker.Consume(home, other) {
		t.Error("it does not work exactly once")
	}
}

func TestFreshTakesTheTimestampsBothSidesWrite(t *testing.T) {
	synctest.Test(t, testIsFreshFormats) // In virtual time, because a stamp of whole seconds looks old otherwise.
}

func testIsFreshFormats(t *testing.T) {
	now := time.Now()
	for written, want := range map[string]bool{
		Timestamp(now): true,
		now.Add(-59 * time.Second).UTC().Format(time.RFC3339):   true,
		now.Add(-61 * time.Second).UTC().Format(time.RFC3339):   false,
		now.Add(2 * time.Minute).UTC().Format(time.RFC3339Nano): false,
		"yesterday": false,
		"":          false,
	} {
		if isFresh(written) != want {
			t.Errorf("fresh(%q) is %t", written, !want)
		}
	}
}

func TestLedgerOfAnotherProcessIsLeft(t *testing.T) {
	home := t.TempDir()
	ledger, unclean, err := OpenLedger(home)
	if err != nil || unclean {
		t.Fatalf("%t %v", unclean, err)
	}
	if err := writeLedger(home, ledgerFile{Phase: "running", PID: os.Getpid() + 1}); err != nil {
		t.Fatal(err)
	}
	if err := ledger.Close(0, "done"); err != nil {
		t.Fatal(err)
	}
	if current, err := readLedger(home); err != nil || current.Phase != "running" {
		t.Errorf("it was overwritten: %+v %v", current, err)
	}
}
