package health

import (
	"context"
	"errors"
	"slices"
	"testing"

	"hinit/internal/boot"
	"hinit/internal/config"
	"hinit/internal/proc"
	"hinit/supervisor"
)

// PID 1 must keep no memory for a profile whose measurement gave no result.
func TestPID1KeptAnEmptyNoteForEachIsolatedProfile(t *testing.T) {
	cfg := &config.Config{Isolation: config.Isolation{Mode: config.IsolationUser}}
	procs, err := proc.New()
	if err != nil {
		t.Fatal(err)
	}
	loop := supervisor.NewLoop(supervisor.Config{Procs: procs})
	go loop.Run()
	for _, name := range []string{"a", "b", "c"} {
		if err := loop.Register(t.Context(), supervisor.Unit{Name: "gateway-" + name, Profile: name, Kind: supervisor.KindGateway}, supervisor.WantDown); err != nil {
			t.Fatal(err)
		}
	}
	h := &Health{options: Options{Config: func() *config.Config { return cfg }, Loop: loop}}
	note := "it has all processors"
	h.MeasureProfiles = func(_ context.Context, list []boot.Gateway, _ string) (found []boot.Measurement, _ error) {
		for _, g := range list {
			found = append(found, boot.Measurement{Service: g.Service})
		}
		found[1].Note = note
		return found, nil
	}
	for range 2 {
		if !h.checkQuotas(true, &h.quota.shareNotes) || len(*h.quota.shareNotes.Load()) != 1 || h.quota.shareNotes.get("gateway-b") != note {
			t.Errorf("notes %q", *h.quota.shareNotes.Load())
		}
	}
	if note = ""; h.checkQuotas(true, &h.quota.shareNotes) || len(*h.quota.shareNotes.Load()) != 0 {
		t.Errorf("notes stay: %q", *h.quota.shareNotes.Load())
	}
	if err := loop.Do(t.Context(), supervisor.Shutdown{}); err != nil {
		t.Fatal(err)
	}
	<-loop.Ended()
	remarks := 0
	records, _ := loop.History().Since(0)
	for _, r := range records {
		if r.Reason == "it has all processors" {
			remarks++
		}
	}
	if remarks != 1 {
		t.Errorf("the note was reported %d times", remarks)
	}
}

// If the measurement of one home fails, the results for all other profiles must be used.
func TestOneProfileThatCanNotBeMeasuredLetAllOthersGoOn(t *testing.T) {
	cfg := &config.Config{Agent: config.Agent{ProcessSettings: config.ProcessSettings{Priority: config.Priority{Quota: config.Quota{StopAbove: 1}}}}}
	procs, err := proc.New()
	if err != nil {
		t.Fatal(err)
	}
	loop := supervisor.NewLoop(supervisor.Config{Procs: procs})
	go loop.Run()
	for _, name := range []string{"a", "b"} {
		if err := loop.Register(t.Context(), supervisor.Unit{Name: "gateway-" + name, Profile: name, Kind: supervisor.KindGateway, Needs: []string{"boot-" + name}}, supervisor.WantUp); err != nil {
			t.Fatal(err)
		}
	}
	h := &Health{options: Options{Config: func() *config.Config { return cfg }, Loop: loop}}
	h.quota.statusNotes.Store(&map[string]string{"gateway-b": "before"})
	h.MeasureProfiles = func(context.Context, []boot.Gateway, string) ([]boot.Measurement, error) {
		return []boot.Measurement{{Service: "gateway-a", Hold: "disk: too much"}}, errors.New("the program was killed")
	}
	h.checkQuotas(false, &h.quota.statusNotes)
	if err := loop.Do(t.Context(), supervisor.NeedMet{Need: "boot-a"}); err != nil {
		t.Fatal(err)
	}
	if needs := loop.Snapshot().Find("gateway-a").Needs; !slices.Contains(needs, supervisor.NeedDisk) {
		t.Errorf("the profile that was measured starts: it needs %v", needs)
	}
	if err := loop.Do(t.Context(), supervisor.Shutdown{}); err != nil {
		t.Fatal(err)
	}
	<-loop.Ended()
	if h.quota.statusNotes.get("gateway-b") != "before" {
		t.Error("the note about the other one is gone")
	}
}

// A file system that reports 0 of 0 inodes, as btrfs and /proc do, must not count as full. Otherwise hinit measures all homes
// every 5 s instead of once a minute.
func TestAFileSystemWithoutInodeCountsIsNotFull(t *testing.T) {
	t.Setenv("TMPDIR", "/proc")
	h := &Health{options: Options{Config: func() *config.Config { return &config.Config{Home: "/proc"} }}}
	if h.diskIsLow() {
		t.Error("a file system that reports no inodes counts as full")
	}
}
