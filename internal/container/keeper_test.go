package container

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"hinit/profiles"
	"hinit/supervisor"
)

// TestNothingIsKeptOfAProfileThatIsGone: the hash of what its gateway was started with was kept for ever.
func TestNothingIsKeptOfAProfileThatIsGone(t *testing.T) {
	k := newKeeper(&container{loop: supervisor.NewLoop(supervisor.Config{})})
	keep := func() {
		k.note("coder")
		k.mark("coder", true)
		k.inputs["coder"] = "hash"
		k.doubted["coder"] = "hash"
		k.begin("coder", time.Now())
	}
	kept := func() int {
		return len(k.present) + len(k.marked) + len(k.inputs) + len(k.doubted) + len(k.begun)
	}
	keep()
	k.forget("coder")
	if n := kept(); n > 0 {
		t.Errorf("%d things are kept", n)
	}
	// What was to be done for it came after that.
	keep()
	delete(k.present, "coder")
	k.observe(supervisor.Record{Service: profiles.SlotName("coder"), Dropped: true})
	(<-k.jobs)()
	if n := kept(); n > 0 {
		t.Errorf("%d things are kept of what came late", n)
	}
	keep()
	k.observe(supervisor.Record{Service: profiles.SlotName("coder"), Dropped: true})
	(<-k.jobs)()
	if n := kept(); n != 5 {
		t.Errorf("%d things are kept of a profile that has come back, not 5", n)
	}
}

// TestAStandbyThatTakesOverAgainKnowsNothingOfTheFirstTime: it started what another container had stopped meanwhile, took a profile for
// one that had been renamed, and left out of the log what was wrong with a platform, because it had said so before.
func TestAStandbyThatTakesOverAgainKnowsNothingOfTheFirstTime(t *testing.T) {
	store := profiles.Open(t.TempDir(), nil, "")
	c := &container{store: store, intents: profiles.NewIntents(store), loop: supervisor.NewLoop(supervisor.Config{})}
	k := newKeeper(c)
	began := time.Now()
	ran := profiles.State{Exists: true, HasDesired: true, Desired: profiles.Running, Written: began.Add(-time.Hour)}
	home := profiles.HomeID{}
	know := func() {
		k.late.expect(true, "coder")
		k.renames.note("old", home)
		k.renames.note("coder", home)
		k.troubled["coder"] = "telegram retries"
		k.multiplexes.Store(true)
		for range 3 {
			k.enqueue("gateway-coder", func() {})
		}
	}
	know()
	if !k.late.start("coder", ran, began) || k.renames.from("old", true) != "coder" || len(k.troubled) != 1 || len(k.jobs) != 3 {
		t.Fatal("it knows nothing before")
	}
	know()
	k.reset()
	if k.late.start("coder", ran, began) {
		t.Error("what ran at the first boot is started")
	}
	if to := k.renames.from("old", true); to != "" {
		t.Errorf("old goes on as %s", to)
	}
	if len(k.troubled) != 0 || k.multiplexes.Load() || len(k.jobs) != 0 {
		t.Errorf("it knows of %v, multiplexed %v, with %d jobs", k.troubled, k.multiplexes.Load(), len(k.jobs))
	}
}

// TestAConfigurationMendedDuringTheStartIsNoticed: hinit looked at it only after the user had mended it, took it for the one
// that the gateway had refused, and left the gateway parked.
func TestAConfigurationMendedDuringTheStartIsNoticed(t *testing.T) {
	home := t.TempDir()
	c := &container{store: profiles.Open(home, nil, "")}
	k := newKeeper(c)
	write := func(text string, at time.Time) {
		t.Helper()
		file := filepath.Join(home, "config.yaml")
		if err := errors.Join(os.WriteFile(file, []byte(text), 0o600), os.Chtimes(file, at, at)); err != nil {
			t.Fatal(err)
		}
	}
	note := func(begun time.Time) profiles.Hash {
		k.begin(profiles.Default, begun)
		k.noteInputs(profiles.SlotName(profiles.Default), profiles.Default)
		return k.inputsOf(profiles.Default)
	}
	content := func() profiles.Hash {
		t.Helper()
		hash, err := c.store.InputsHash(profiles.Default)
		if err != nil {
			t.Fatal(err)
		}
		return hash
	}
	begun := time.Now()
	write("wrong", begun.Add(-time.Second))
	if note(begun) != content() {
		t.Error("what was written before the start is not what the gateway was started with")
	}
	write("mended", begun.Add(time.Second))
	if note(begun) == content() {
		t.Error("what was written during the start counts as what the gateway was started with")
	}
	if note(begun) != content() {
		t.Error("the same content starts the gateway for ever")
	}
	write("wrong again", begun.Add(time.Second))
	if note(begun) == content() {
		t.Error("another content that was written during a start is not noticed")
	}
}

// TestTheVolumeIsNotWatchedToTheEnd: the kernel takes its time to end that, and the end of the container would wait for it.
func TestTheVolumeIsNotWatchedToTheEnd(t *testing.T) {
	for _, early := range []bool{false, true} {
		c := &container{store: profiles.Open(t.TempDir(), nil, "")}
		k := newKeeper(c)
		home, err := c.store.Profile(profiles.Default)
		if err != nil {
			t.Fatal(err)
		}
		if early {
			k.stop()
		}
		k.start(t.Context(), []profiles.Profile{home})
		if !early {
			k.stop()
		}
		select {
		case <-k.watch().Done():
		case <-time.After(20 * time.Second):
			t.Errorf("it is still watched; the container stopped before the watch began: %v", early)
		}
	}
}

// TestAtTheEndOnlyIntentsAreLookedAfter: a gateway may take back what was asked of it with the last thing that it writes.
func TestAtTheEndOnlyIntentsAreLookedAfter(t *testing.T) {
	store := profiles.Open(t.TempDir(), nil, "")
	c := &container{store: store, intents: profiles.NewIntents(store)}
	k := newKeeper(c)
	ended := supervisor.Record{Service: profiles.SlotName(profiles.Default), From: supervisor.Stopping, To: supervisor.Down}
	k.stop()
	k.observe(ended)
	if len(k.jobs) != 0 {
		t.Error("a state file is read although nothing depends on it any more")
	}
	if err := c.intents.Set(profiles.Default, profiles.Running); err != nil {
		t.Fatal(err)
	}
	k.observe(ended)
	if len(k.jobs) != 1 {
		t.Error("nobody looks whether the gateway has taken back what was asked of it")
	}
}
