package e2e

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
)

// TestCommand checks a container command: none, below Docker's own init, and with the image's
// script as entrypoint.
func TestCommand(t *testing.T) {
	parallel(t)
	for _, tt := range []struct {
		name    string
		options []string
		cmd     []string
		code    int
		out     string
	}{
		{name: "no arguments", out: "usage: hermes"},
		{name: "code below another init", options: []string{"--init"}, cmd: []string{"sh", "-c", "exit 42"}, code: 42},
		{name: "the script itself", options: []string{"--entrypoint", "/opt/hermes/docker/main-wrapper.sh"}, cmd: []string{"chat", "-q", "x"}, out: "echo: x\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			parallel(t)
			if r := runContainer(t, tt.options, tt.cmd...); r.code != tt.code || !strings.Contains(r.out, tt.out) || strings.Contains(r.err, "panic") {
				t.Errorf("want exit code %d and %q: %v", tt.code, tt.out, r)
			}
		})
	}
}

// TestCommandEnvironment compares the command's environment with the image's and docker run's.
func TestCommandEnvironment(t *testing.T) {
	parallel(t)
	r := runContainer(t, []string{"-e", "ODD= a=b\tc ", "-e", "EMPTY=", "--group-add", "4242"}, "sh", "-c", "! touch /opt/hermes/x && exec /opt/hermes/.venv/bin/hermes agent-info --json")
	if r.code != 0 {
		t.Fatal(r)
	}
	var got struct {
		Argv          []string
		Env           map[string]string
		Home, Profile string
		Groups        []int
		PID, PGID     int
	}
	if err := json.Unmarshal([]byte(r.last()), &got); err != nil {
		t.Fatalf("%v in %v", err, r)
	}
	want := map[string]string{
		"ODD": " a=b\tc ", "EMPTY": "", "HOME": "/opt/data", "HERMES_HOME": "/opt/data", "HERMES_WRITE_SAFE_ROOT": "/opt/data",
		"HERMES_DISABLE_LAZY_INSTALLS": "1", "PYTHONDONTWRITEBYTECODE": "1", "PATH": "/command:" + agentPath,
	}
	for name, value := range want {
		if v, ok := got.Env[name]; !ok || v != value {
			t.Errorf("%s=%q (set: %v), want %q", name, v, ok, value)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(got.Env)) {
		if strings.HasPrefix(name, "HERMES_S6_SUPERVISED") {
			t.Errorf("the command is told to be supervised: %s", name)
		}
	}
	if got.Home != "/opt/data" || got.Profile != "default" || !slices.Equal(got.Argv[1:], []string{"agent-info", "--json"}) {
		t.Errorf("%+v", got)
	}
	if !slices.Equal(got.Groups, []int{10000}) {
		t.Errorf("groups %v, want those that /etc/group gives to hermes", got.Groups)
	}
	if got.PID != got.PGID {
		t.Errorf("the command (pid %d) does not lead its process group %d", got.PID, got.PGID)
	}
}
