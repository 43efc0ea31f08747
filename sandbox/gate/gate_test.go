package gate

import (
	"errors"
	"testing"
)

// TestTheEnginesOwnProgramIsNoCommand checks that a container does not count as open while its
// first process is still the engine's own program.
func TestTheEnginesOwnProgramIsNoCommand(t *testing.T) {
	for _, one := range []struct {
		words []string
		name  string
		err   error
		want  string
	}{
		{[]string{"runc", "init", ""}, "runc:[2:INIT]", nil, ""},
		{[]string{""}, "gate", nil, ""},
		{[]string{""}, "", errors.New("no such process"), ""},
		{[]string{DirPrefix + "x/gate", "gate", "sleep", ""}, ProgramName, nil, StateWaiting},
		{[]string{DirPrefix + "x/gate", "gate-init", "sleep", ""}, ProgramName, nil, StateWaiting},
		{[]string{DirPrefix + "x/gate", "gate-init", "sleep", ""}, initProcessName, nil, StateOpened},
		{[]string{"sleep", "infinity", ""}, "sleep", nil, StateOpened},
		{[]string{"/bin/sh", ""}, "sh", nil, StateOpened},
	} {
		if got := stateOf(one.words, one.name, one.err); got != one.want {
			t.Errorf("%q %q: %q, want %q", one.words, one.name, got, one.want)
		}
	}
}
