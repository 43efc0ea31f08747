package volume

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"hinit/client"
	"hinit/internal/boot"
	"hinit/internal/fsutil"
)

// TestAVolumeIsExamined: a directory that is missing is a failure, and nothing is left behind.
func TestAVolumeIsExamined(t *testing.T) {
	o := Options{}
	o.Home, o.Agent = t.TempDir(), fsutil.Self()
	o.Logs = filepath.Join(o.Home, "logs")
	results := func() (all []string) {
		var found client.Findings
		for _, c := range checks(o, boot.Job{AgentUser: boot.CallerAsAgent().User, Marker: "SOUL.md", Profiles: 10}) {
			c.run(&found)
		}
		for _, f := range found {
			if f.Check != "space" { // the disk of the test may be full
				all = append(all, f.Check+" "+f.Result)
			}
		}
		return all
	}
	if got := results(); !slices.Equal(got, []string{"home ok", "logs failed"}) {
		t.Errorf("without a log directory: %q", got)
	}
	if err := os.Mkdir(o.Logs, 0o755); err != nil {
		t.Fatal(err)
	}
	if got := results(); !slices.Equal(got, []string{"home ok", "logs ok"}) {
		t.Errorf("with it: %q", got)
	}
	if left, err := os.ReadDir(o.Logs); len(left) > 0 || err != nil {
		t.Errorf("it has left %v, %v", left, err)
	}
}
