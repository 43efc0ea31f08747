package boot

import (
	"strings"
	"testing"
)

// A pod may start with a high uid, as OpenShift assigns them, without any variable. An error in a pod must name settings of the
// pod, not options of docker run.
func TestAPodMayHaveTheUserOfItsPlatform(t *testing.T) {
	pod := envLookup(map[string]string{"KUBERNETES_SERVICE_HOST": "10.96.0.1"})
	if err := CheckStartUser(1_000_650_000, 10000, true, pod); err != nil {
		t.Error(err)
	}
	if CheckStartUser(1_000_650_000, 10000, true, envLookup(nil)) == nil {
		t.Error("a high uid was admitted outside a pod")
	}
	err := CheckStartUser(1000, 10000, true, pod)
	if err == nil || !strings.Contains(err.Error(), "securityContext.runAsUser and fsGroup to 10000") || strings.Contains(err.Error(), "--user") {
		t.Errorf("%v", err)
	}
}

func TestAdmit(t *testing.T) {
	for _, tt := range []struct {
		uid   int
		known bool
		any   string
		ok    bool
	}{
		{0, true, "", true},
		{10000, true, "", true},
		{1000, true, "", false},
		{1000, true, "0", false},
		{1000, true, "1", true},
		{1000, false, "", true},
	} {
		err := CheckStartUser(tt.uid, 10000, tt.known, envLookup(map[string]string{"HINIT_ALLOW_ANY_UID": tt.any}))
		if (err == nil) != tt.ok {
			t.Errorf("%+v: %v", tt, err)
		}
		if err == nil {
			continue
		}
		first, second, _ := strings.Cut(err.Error(), "\n")
		for prefix, line := range map[string]string{"[stage2]": first, "[hermes]": second} {
			if !strings.HasPrefix(line, prefix+" ERROR: container started with --user 1000") || strings.Contains(line, "\n") {
				t.Errorf("line is %q", line)
			}
			for _, remedy := range []string{"HERMES_UID", "HERMES_GID", "PUID", "PGID"} {
				if !strings.Contains(line, remedy) {
					t.Errorf("%q does not name %s", line, remedy)
				}
			}
		}
	}
}
