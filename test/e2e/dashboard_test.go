package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// dashboardAt asks the dashboard for its status from inside the container.
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

// TestDashboardOff is the default: the service is known, down, and can be asked for.
func TestDashboardOff(t *testing.T) {
	parallel(t)
	c := start(t, setup{options: []string{"-e", "HERMES_DASHBOARD=on", "-e", "HERMES_DASHBOARD_INSECURE=1"}}, "sleep", "1000")
	s := c.await("dashboard", "out of the boot", func(s service) bool { return s.State != "waiting" })
	if s.State != "down" || s.Want != "down" || s.Restarts != 0 {
		t.Errorf("%+v", s)
	}
	if r := c.exec("hinit", "status", "dashboard"); r.code != 3 {
		t.Errorf("want code 3: %v", r)
	}
	if found := c.matching("hermes dashboard"); len(found) > 0 {
		t.Errorf("it runs: %+v", found)
	}
	if r := c.execAs([]string{"-u", "hermes"}, "hinit", "start", "dashboard"); r.code != 0 {
		t.Error(r)
	}
	if r := c.execAs([]string{"-u", "hermes"}, "hinit", "stop", "dashboard"); r.code != 0 {
		t.Error(r)
	}
}

// TestDashboardOn runs it beside a supervised gateway, and kills it.
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
	c.awaitOutput(func(out, _ string) error { return has("\n"+out, "\nDashboard on http://") }) // raw
	c.must("kill", "-9", fmt.Sprint(first.PID))
	c.await("dashboard", "up again", func(s service) bool { return s.State == "up" && s.PID != first.PID && s.Restarts == 1 })
}

// TestDashboardInsecure opts out of the login.
func TestDashboardInsecure(t *testing.T) {
	parallel(t)
	c := start(t, setup{options: []string{"-e", "HERMES_DASHBOARD=1", "-e", "HERMES_DASHBOARD_INSECURE=1"}}, "sleep", "1000")
	c.awaitUp("dashboard")
	eventually(t, settle, func() error {
		auth, err := c.dashboardAt("127.0.0.1:9119")
		if err == nil && auth {
			err = fmt.Errorf("it wants a login all the same")
		}
		return err
	})
}

// TestDashboardRefuses has no login for all addresses: the dashboard fails closed and is not started again, nothing else is touched.
func TestDashboardRefuses(t *testing.T) {
	parallel(t)
	c := start(t, setup{options: []string{"-e", "HERMES_DASHBOARD=1"}}, "gateway", "run")
	c.awaitUp("gateway-default")
	s := c.await("dashboard", "refusing, with its last lines", func(s service) bool { // which are read after the exit
		return s.State == "parked" && s.LastExit != nil && len(s.LastExit.Tail) > 0
	})
	if err := has(c.exec("hinit", "explain", "dashboard").out, "parked", "Refusing to bind"); err != nil {
		t.Error(err)
	}
	if x := s.LastExit; x.Code == nil || *x.Code != 78 || !strings.Contains(strings.Join(x.Tail, "\n"), "Refusing to bind") {
		t.Errorf("last exit %+v", x)
	}
	if s, _ := c.status().find("gateway-default"); s.State != "up" || s.Restarts != 0 {
		t.Errorf("%+v", s)
	}
	july := start(t, setup{options: []string{"-e", "HERMES_DASHBOARD=1", "-e", "AGENT_DASHBOARD_CODE=1"}}, "sleep", "1000")
	july.await("dashboard", "refusing with July's exit code", func(s service) bool { return s.State == "parked" })
	if err := has(july.exec("hinit", "explain", "dashboard").out, "parked", "Refusing to bind"); err != nil {
		t.Error(err)
	}
}

// TestDashboardContainer has the dashboard as its command: it leaves the gateways of a shared volume alone
// (contract, section 3.2).
func TestDashboardContainer(t *testing.T) {
	parallel(t)
	c := start(t, setup{files: three()}, "dashboard", "--port", "9121")
	eventually(t, settle, func() error {
		_, err := c.dashboardAt("127.0.0.1:9121")
		return err
	})
	never(t, "there is a slot for a gateway", func() error {
		st, err := c.look()
		if err == nil && !slices.ContainsFunc(st.Services, func(s service) bool { return strings.HasPrefix(s.Name, "gateway-") }) {
			err = errors.New("no slot")
		}
		return err
	})
	c.awaitOutput(func(_, stderr string) error {
		return has(stderr, "reconcile: skipping (dashboard container — does not need per-profile gateways)")
	})
	if r := c.exec("test", "-e", "/opt/data/logs/container-boot.log"); r.code == 0 {
		t.Error("there is a boot log")
	}
}
