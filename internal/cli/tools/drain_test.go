package tools

import (
	"fmt"
	"os"
	"slices"
	"testing"

	"hinit/internal/fsutil"
	"hinit/internal/procstat"
	"hinit/profiles"
)

// The preStop hook of a pod must wait until no gateway is answering a message.
func TestAPodEndsWhenNoGatewayWorks(t *testing.T) {
	home := t.TempDir()
	self, err := procstat.Read(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		state string
		want  []string
	}{
		{fmt.Sprintf(`{"pid": %d, "start_time": %d, "active_agents": 2}`, self.PID, self.Start), []string{"default works on 2"}},
		{fmt.Sprintf(`{"pid": %d, "start_time": %d, "active_agents": 0}`, self.PID, self.Start), nil},
		// The state file of an earlier process with the same PID.
		{fmt.Sprintf(`{"pid": %d, "start_time": %d, "active_agents": 2}`, self.PID, self.Start+1), nil},
		{fmt.Sprintf(`{"pid": %d, "start_time": %d, "active_agents": -7}`, self.PID, self.Start), nil},
		{`{"active_agents":`, nil},
	} {
		if err := os.WriteFile(home+"/gateway_state.json", []byte(tt.state), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := busyProfiles(profiles.Open(home, fsutil.ProcessActor(), ""))
		if err != nil || !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q, %v", tt.state, got, err)
		}
	}
}
