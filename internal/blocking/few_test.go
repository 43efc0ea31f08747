package blocking

import "testing"

// VolumeTurns is how many calls to the volume there are at once.
func VolumeTurns() int { return turns[Volume] }

// With as few turns as can be every share still has one, and the volume one that a file which hangs does not take.
func TestFew(t *testing.T) {
	oldTurns, oldTaken := turns, taken
	defer func() { turns, taken = oldTurns, oldTaken }()
	many := Turns()
	Few()
	if Turns() >= many {
		t.Errorf("%d turns are few, of %d", Turns(), many)
	}
	for s := range shares {
		done := 0
		if err := Do(s, func() error { done++; return nil }); err != nil || done != 1 {
			t.Errorf("share %d: %v, done %d times", s, err, done)
		}
	}
	if err := Do(Volume, func() error { return Do(Volume, func() error { return nil }) }); err != nil {
		t.Error(err)
	}
}
