package main

import (
	"os"
	"testing"
	"time"
)

// ended is a child that has ended and nobody has waited for.
func ended(t *testing.T) *os.Process {
	t.Helper()
	before := len(zombies(os.Getpid()))
	p, err := os.StartProcess("/bin/true", []string{"true"}, &os.ProcAttr{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = p.Wait() }) // it may have been waited for
	for end := time.Now().Add(40 * time.Second); len(zombies(os.Getpid())) == before; {
		if time.Now().After(end) {
			t.Fatal("the child does not end")
		}
		<-time.After(time.Millisecond)
	}
	return p
}

// TestAProcessThatIsJustBeingBuriedIsNoTrouble: the doctor found fault with a process that had ended a moment before.
func TestAProcessThatIsJustBeingBuriedIsNoTrouble(t *testing.T) {
	if n := unburied(os.Getpid(), func() { t.Error("it waits for nothing") }); n != 0 {
		t.Fatalf("%d are unburied before anything has ended", n)
	}
	ended(t)
	fresh := ended(t)
	n := unburied(os.Getpid(), func() {
		if _, err := fresh.Wait(); err != nil {
			t.Error(err)
		}
	})
	if n != 1 {
		t.Errorf("%d are unburied, not the one that stays", n)
	}
}
