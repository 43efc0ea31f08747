package e2e

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Log lines about what a container can't do.
const (
	readOnlyRoot = "the root file system is read-only: /etc/passwd keeps the ids of the image"
	noRun        = "/run cannot be written: the control socket is elsewhere, and there are no s6 directories; to have them, start with --tmpfs /run"
	noPrivs      = "no_new_privs is set: sudo and other set-user-ID programs do not work inside"
	asAgent      = "started as uid 10000: no change of user or of file owners, and HERMES_UID and HERMES_GID have no effect"
)

// TestRestricted checks that all features work in restricted containers, and that each restriction
// is reported once.
func TestRestricted(t *testing.T) {
	parallel(t)
	hermes := []string{"-u", "hermes"}
	tests := []struct {
		name    string
		options []string
		said    []string         // Required log texts, from the constants above.
		warning string           // Required log warning.
		beneath bool             // Whether hinit runs below another PID 1.
		extra   func(*container) // Further checks of this row.
	}{
		{name: "below another init", options: []string{"--init", "--health-interval", "1s"}, beneath: true, extra: func(c *container) {
			eventually(t, settle, func() error {
				if health := c.inspect("{{.State.Health.Status}}"); health != "healthy" {
					return fmt.Errorf("the container is %s: %s", health, c.inspect("{{json .State.Health}}"))
				}
				return nil
			})
		}},
		{name: "as hermes, with a strict boot", options: []string{"--user", "10000:10000", "-e", "HINIT_BOOT_STRICT=1"}, said: []string{asAgent}, extra: (*container).checkS6Tools},
		{
			name: "as hermes without a run directory", options: []string{"--user", "10000:10000", "--tmpfs", "/run"}, said: []string{noRun, asAgent},
			warning: `cannot use "/run/hinit" for the control socket: permission denied; using "/tmp/hinit-10000"`,
			extra:   func(c *container) { c.checkLoggedOnce(noRun + ":uid=10000,mode=755") },
		},
		{name: "read-only", options: []string{"--read-only"}, said: []string{readOnlyRoot, noRun}, warning: `read-only file system`},
		{
			name: "read-only as hermes by name without capabilities", said: []string{readOnlyRoot, noRun, noPrivs, asAgent}, warning: `read-only file system`,
			options: []string{"--read-only", "--user", "hermes", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			parallel(t)
			c := start(t, setup{options: tt.options}, "gateway", "run")
			c.awaitUp("gateway-default")
			c.awaitHealthy() // This line is the boot's last one.
			st := c.status()
			if (st.Init.PID != 1) != tt.beneath || st.Init.Subreaper != tt.beneath {
				t.Errorf("init: %+v", st.Init)
			}
			warnings := strings.Join(st.Init.Warnings, "\n")
			if tt.said == nil && warnings != "" {
				t.Errorf("warnings: %s", warnings)
			}
			c.awaitStderr(tt.warning)
			if err := checkContains(warnings, append(tt.said, tt.warning)...); err != nil {
				t.Errorf("the status: %v", err)
			}
			c.awaitOutput(func(_, stderr string) error {
				for _, line := range []string{readOnlyRoot, noRun, noPrivs, asAgent} {
					want := 0
					if slices.Contains(tt.said, line) {
						want = 1
					}
					if got := strings.Count(stderr, "[hinit] warning: "+line); got != want {
						return fmt.Errorf("%q is said %d times, want %d", line, got, want)
					}
				}
				return nil
			})
			if tt.extra != nil {
				tt.extra(c)
			}

			c.awaitHealthy(hermes...)
			for _, step := range [][]string{
				{"hermes", "profile", "create", "coder"},
				{"hinit", "start", "coder"},
				{"hinit", "status", "coder", "default"},
			} {
				if r := c.execAs(hermes, step...); r.code != 0 {
					t.Fatal(r)
				}
			}
			leak := "echo leak_child=doublefork-setsid-cleanenv >/opt/data/profiles/coder/agent.conf"
			if r := c.execAs(hermes, "sh", "-c", leak); r.code != 0 {
				t.Fatal(r)
			}
			c.mustExec("hinit", "restart", "coder")
			s := c.await("gateway-coder", "up", func(s service) bool { return s.Ready })
			eventually(t, settle, func() error {
				if len(c.matching("agent-helper nap")) != 1 {
					return errors.New("there is no helper")
				}
				return nil
			})
			if r := c.execAs(hermes, "kill", "-9", strconv.Itoa(s.PID)); r.code != 0 {
				t.Fatal(r)
			}
			c.await("gateway-coder", "back", func(n service) bool { return n.Ready && n.Restarts > s.Restarts && n.PID != s.PID })
			c.mustExec("hinit", "stop", "coder")
			if left := c.matching("agent-helper|-p coder"); len(left) > 0 {
				t.Errorf("stopped, and left %+v", left)
			}
			// Orphans of other processes become children of the init, too.
			c.execAs(hermes, "sh", "-c", "for i in 1 2 3 4 5; do ( (exit 0) & ); done")
			for _, p := range c.processes() {
				if strings.HasPrefix(p.state, "Z") {
					eventually(t, settle, func() error { return c.checkGone(p.pid) })
				}
			}
			c.mustExec("hinit", "start", "coder")
			mustDocker(t, "restart", c.id)
			c.awaitStates(map[string]string{"gateway-default": "up", "gateway-coder": "up"})
		})
	}
}

// checkS6Tools checks that the tools of s6 work on a new profile.
func (c *container) checkS6Tools() {
	c.t.Helper()
	if comm := c.mustExec("cat", "/proc/1/comm"); comm != "s6-svscan" {
		c.t.Errorf("process 1 is %s", comm)
	}
	c.mustExec("test", "-d", "/run/s6/basedir")
	c.mustExec("hermes", "profile", "create", "tools")
	eventually(c.t, settle, func() error { // the example agent does not register its slot, so hinit makes the slot when it sees the profile
		if r := c.exec("s6-svok", "/run/service/gateway-tools"); r.code != 0 {
			return fmt.Errorf("no slot yet: %v", r)
		}
		return nil
	})
	c.mustExec("s6-svc", "-u", "/run/service/gateway-tools")
	c.await("gateway-tools", "up", func(s service) bool { return s.Ready })
	c.mustExec("s6-svc", "-d", "/run/service/gateway-tools")
	c.await("gateway-tools", "down", func(s service) bool { return s.State == "down" })
	c.mustExec("s6-svstat", "/run/service/gateway-tools")
	c.mustExec("hinit", "profile", "delete", "--yes", "tools")
}
