package e2e

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestRestricted takes away what the container usually has, one after the other. All features work all the same, and what
// is different is said.
func TestRestricted(t *testing.T) {
	parallel(t)
	tests := []struct {
		name    string
		options []string
		warning string // "" for none at all
		beneath bool   // not PID 1
	}{
		{name: "below another init", options: []string{"--init"}, beneath: true},
		{name: "as hermes", options: []string{"--user", "10000:10000"}, warning: "started as uid 10000: no change of user or of file owners"},
		{name: "as hermes without a run directory", options: []string{"--user", "10000:10000", "--tmpfs", "/run"}, warning: `cannot use "/run/hinit" for the control socket: permission denied; using "/tmp/hinit-10000"`},
		{name: "as hermes by name below another init", options: []string{"--user", "hermes", "--init"}, warning: "started as uid 10000: no change of user or of file owners", beneath: true},
		{name: "read-only with tmpfs", options: []string{"--read-only", "--tmpfs", "/run"}, warning: "the root file system is read-only: /etc/passwd keeps the ids of the image"},
		{name: "read-only", options: []string{"--read-only"}, warning: `read-only file system`},
		{name: "read-only as hermes", options: []string{"--read-only", "--user", "10000:10000"}, warning: `read-only file system`},
		{name: "no capabilities as hermes", options: []string{"--user", "10000:10000", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"}, warning: "no_new_privs is set"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			parallel(t)
			c := start(t, setup{options: tt.options}, "gateway", "run")
			c.awaitUp("gateway-default")
			c.awaitHealthy() // then the boot has said all it has to say
			st := c.status()
			if (st.Init.PID != 1) != tt.beneath || st.Init.Subreaper != tt.beneath {
				t.Errorf("init: %+v", st.Init)
			}
			if tt.warning == "" && len(st.Init.Warnings) > 0 {
				t.Errorf("warnings: %q", st.Init.Warnings)
			}
			c.awaitStderr(tt.warning)
			if tt.warning != "" && !slices.ContainsFunc(st.Init.Warnings, func(w string) bool { return strings.Contains(w, tt.warning) }) {
				t.Errorf("not said: %q; status has %q", tt.warning, st.Init.Warnings)
			}

			hermes := []string{"-u", "hermes"}
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
			c.must("hinit", "restart", "coder")
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
			c.must("hinit", "stop", "coder")
			if left := c.matching("agent-helper|-p coder"); len(left) > 0 {
				t.Errorf("stopped, and left %+v", left)
			}
			// Orphans of somebody else come to the init too.
			c.execAs(hermes, "sh", "-c", "for i in 1 2 3 4 5; do ( (exit 0) & ); done")
			for _, p := range c.processes() {
				if strings.HasPrefix(p.state, "Z") {
					eventually(t, settle, func() error { return c.gone(p.pid) })
				}
			}
			c.must("hinit", "start", "coder")
			mustDocker(t, "restart", c.id)
			c.awaitStates(map[string]string{"gateway-default": "up", "gateway-coder": "up"})
		})
	}
}
