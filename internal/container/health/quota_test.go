package health

import (
	"context"
	"testing"

	"hinit/internal/boot"
	"hinit/internal/config"
	"hinit/internal/proc"
	"hinit/supervisor"
)

// TestPID1KeptAnEmptyNoteForEachIsolatedProfile fails if a measurement without a result takes memory until the next one.
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
	h := &Health{o: Options{Config: func() *config.Config { return cfg }, Loop: loop}}
	note := "it has all processors"
	h.MeasureProfiles = func(_ context.Context, list []boot.Gateway, _ string) (found []boot.Measurement, _ error) {
		for _, g := range list {
			found = append(found, boot.Measurement{Service: g.Service})
		}
		found[1].Note = note
		return found, nil
	}
	for range 2 {
		if !h.checkQuotas(true, &h.quota.shareNotes) || len(*h.quota.shareNotes.Load()) != 1 || h.quota.shareNotes.of("gateway-b") != note {
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
