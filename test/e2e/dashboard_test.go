package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// dashboardAt requests the dashboard's status from inside the container.
func (c *container) dashboardAt(address string) (authRequired bool, err error) {
	r := c.exec("wget", "-q", "-O", "-", "http://"+address+"/api/status")
	if r.code != 0 {
		return false, fmt.Errorf("%v", r)
	}
	var reply struct {
		AuthRequired bool `json:"auth_required"`
	}
	err = json.Unmarshal([]byte(r.out), &reply)
	return reply.AuthRequired, err
}

// TestDashboardOn checks that the dashboard runs beside a supervised gateway, and restarts after a
// kill.
func TestDashboardOn(t *testing.T) {
	parallel(t)
	c := start(t, setup{options: []string{
		"-e", "HERMES_DASHBOARD=TRUE", "-e", "HERMES_DASHBOARD_PORT=9120", "-e", "HERMES_DASHBOARD_BASIC_AUTH_USERNAME=admin",
	}}, "gateway", "run")
	c.awaitUp("gateway-default")
	first := c.await("dashboard", "up", func(s service) bool { return s.State == "up" })
	eventually(t, settle, func() error {
		auth, err := c.dashboardAt("127.0.0.1:9120")
		if err == nil && !auth {
			err = fmt.Errorf("it needs no login on all addresses")
		}
		return err
	})
	if r := c.exec("wget", "-q", "-O", "-", "http://127.0.0.1:9120/api/sessions"); r.code == 0 || !strings.Contains(r.err, "401") {
		t.Errorf("want 401: %v", r)
	}
	found := c.matching("hermes dashboard")
	if len(found) != 1 || found[0].pid != first.PID || strings.Contains(found[0].args, "--insecure") || !strings.Contains(found[0].args, "--host 0.0.0.0 --port 9120 --no-open") {
		t.Errorf("%+v, want pid %d", found, first.PID)
	}
	env := c.execAs([]string{"-u", "hermes"}, "sh", "-c",
		fmt.Sprintf("tr '\\0' '\\n' </proc/%d/environ; readlink /proc/%[1]d/cwd; stat -c %%U /proc/%[1]d", first.PID)).out
	for _, line := range []string{"HOME=/opt/data", "/opt/data", "hermes"} {
		if !strings.Contains("\n"+env+"\n", "\n"+line+"\n") {
			t.Errorf("no %q in the environment, directory and user: %s", line, env)
		}
	}
	// The dashboard's lines have no prefix of hinit.
	c.awaitOutput(func(out, _ string) error { return checkContains("\n"+out, "\nDashboard on http://") })
	c.mustExec("kill", "-9", fmt.Sprint(first.PID))
	c.await("dashboard", "up again", func(s service) bool { return s.State == "up" && s.PID != first.PID && s.Restarts == 1 })
}
