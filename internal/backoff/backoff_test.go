package backoff_test

import (
	"testing"
	"time"

	"hinit/internal/backoff"
)

func TestDelayDoublesFromInitialToTheCap(t *testing.T) {
	p := backoff.Policy{Initial: time.Second, Max: 60 * time.Second, Factor: 2}
	want := []time.Duration{1, 1, 2, 4, 8, 16, 32, 60, 60}
	for failures, seconds := range want {
		if got := p.Delay(failures, 0.5); got != seconds*time.Second {
			t.Errorf("Delay(%d) = %v, want %v", failures, got, seconds*time.Second)
		}
	}
}

func TestJitterSpreadsBothWays(t *testing.T) {
	p := backoff.Policy{Initial: 10 * time.Second, Max: time.Minute, Factor: 2, Jitter: 0.1}
	if got := p.Delay(1, 0); got != 9*time.Second {
		t.Errorf("shortest = %v, want 9s", got)
	}
	if got := p.Delay(1, 0.999999); got < 10990*time.Millisecond || got > 11*time.Second {
		t.Errorf("longest = %v, want just under 11s", got)
	}
}

func TestDelayIsBoundedWhateverTheInput(t *testing.T) {
	for _, p := range []backoff.Policy{
		{Initial: time.Hour, Factor: 1e300},
		{Initial: time.Second, Max: time.Minute, Factor: 2, Jitter: 99},
		{Factor: -3},
		{},
	} {
		for _, n := range []int{-5, 0, 1, 1 << 30} {
			if d := p.Delay(n, 0.99); d < 0 {
				t.Errorf("%+v.Delay(%d) = %v", p, n, d)
			}
		}
	}
}
