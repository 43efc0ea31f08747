package health

import (
	"os"
	"testing"

	"hinit/internal/proc"
	"hinit/profiles"
	"hinit/supervisor"
)

// A check of the kind state must ignore a state file of an earlier run. After docker stop and docker start, the pid in that
// file may be the new gateway's.
func TestAStateCheckTakesNoFileOfAnotherRun(t *testing.T) {
	started, _ := proc.StartTicks(os.Getpid())
	for _, tt := range []struct {
		name string
		st   profiles.State
		good bool
	}{
		{"of this run", profiles.State{PID: os.Getpid(), StartTime: started}, true},
		{"of a run before with the same pid", profiles.State{PID: os.Getpid(), StartTime: started - 1}, false},
		{"of another process", profiles.State{PID: os.Getppid(), StartTime: started}, false},
		{"of an agent that names none", profiles.State{}, true},
	} {
		_, err := readRunState(&supervisor.Service{PID: os.Getpid()}, "", func(string) (profiles.State, error) { return tt.st, nil })
		if good := err == nil; good != tt.good {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}
