package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// TestCommand runs containers for one command: it gets its arguments, and the container its exit code
// (contract, sections 3 and 12).
func TestCommand(t *testing.T) {
	parallel(t)
	tests := []struct {
		name    string
		options []string
		cmd     []string
		code    int
		last    string // last line of stdout, "" for any
	}{
		{name: "version", cmd: []string{"--version"}},
		{name: "help", cmd: []string{"--help"}},
		{name: "no arguments"},
		{name: "chat help", cmd: []string{"chat", "--help"}},
		{name: "chat", cmd: []string{"chat", "-q", "hi there"}, last: "echo: hi there"},
		{name: "agent by name", cmd: []string{"hermes", "chat", "-q", "x"}, last: "echo: x"},
		{name: "dashboard help", cmd: []string{"dashboard", "--help"}},
		{name: "executable", cmd: []string{"sleep", "1"}},
		{name: "shell", cmd: []string{"sh", "-c", "echo ok"}, last: "ok"},
		{name: "absolute path", cmd: []string{"/bin/echo", "ok"}, last: "ok"},
		{name: "exact argv", cmd: []string{"sh", "-c", `printf '<%s>' "$@"; echo`, "sh", "a b", "", "*", "--", "-x"}, last: "<a b><><*><--><-x>"},
		{name: "exit code", cmd: []string{"sh", "-c", "exit 42"}, code: 42},
		{name: "ended by TERM", cmd: []string{"sh", "-c", "kill -TERM $$"}, code: 143},
		{name: "ended by KILL", cmd: []string{"sh", "-c", "kill -KILL $$"}, code: 137},
		{name: "ended by SEGV", cmd: []string{"sh", "-c", "kill -SEGV $$"}, code: 139},
		{name: "not executable", cmd: []string{"/etc/passwd"}, code: 126},
		{name: "default directory", cmd: []string{"pwd"}, last: "/opt/hermes"},
		{name: "working directory", options: []string{"-w", "/tmp"}, cmd: []string{"sh", "-c", "pwd"}, last: "/tmp"},
		{name: "uid", cmd: []string{"id"}, last: "uid=10000(hermes) gid=10000(hermes) groups=10000(hermes)"},
		{name: "data is writable", cmd: []string{"sh", "-c", "touch /opt/data/x && echo ok"}, last: "ok"},
		{name: "install is not", cmd: []string{"sh", "-c", "touch /opt/hermes/x || echo ok"}, last: "ok"},
		{name: "below another init", options: []string{"--init"}, cmd: []string{"--help"}},
		{name: "code below another init", options: []string{"--init"}, cmd: []string{"sh", "-c", "exit 42"}, code: 42},
		{name: "as hermes", options: []string{"--user", "10000:10000"}, cmd: []string{"sh", "-c", "echo OK"}, last: "OK"},
		{name: "as hermes by name", options: []string{"--user", "hermes"}, cmd: []string{"sh", "-c", "echo OK"}, last: "OK"},
		{name: "tini, options and words", options: []string{"--entrypoint", "/usr/bin/tini"}, cmd: []string{"-g", "-e", "143", "--", "sh", "-c", "exit 7"}, code: 7},
		{name: "tini before the entrypoint", options: []string{"--entrypoint", "/usr/bin/tini"}, cmd: []string{"-g", "--", "/opt/hermes/docker/main-wrapper.sh", "chat", "-q", "x"}, last: "echo: x"},
		{name: "the script itself", options: []string{"--entrypoint", "/opt/hermes/docker/main-wrapper.sh"}, cmd: []string{"chat", "-q", "x"}, last: "echo: x"},
		{name: "hinit init", options: []string{"--entrypoint", "/usr/local/bin/hinit"}, cmd: []string{"init", "--", "sh", "-c", "exit 7"}, code: 7},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			parallel(t)
			r := runOnce(t, tt.options, tt.cmd...)
			if r.code != tt.code {
				t.Fatalf("exit code %d, want %d\n%v", r.code, tt.code, r)
			}
			if tt.last != "" && r.last() != tt.last {
				t.Errorf("last line of stdout: %q, want %q\n%v", r.last(), tt.last, r)
			}
			if strings.Contains(r.err, "Traceback") || strings.Contains(r.err, "panic") {
				t.Errorf("stderr: %s", r.err)
			}
			if slices.Contains(tt.cmd, "--help") && !strings.Contains(r.out, "usage:") {
				t.Errorf("no usage in %q", r.out)
			}
		})
	}
}

// TestCommandEnvironment compares what the command was given with what the image and docker run say.
func TestCommandEnvironment(t *testing.T) {
	parallel(t)
	r := runOnce(t, []string{"-e", "ODD= a=b\tc ", "-e", "EMPTY=", "--group-add", "4242"}, "agent-info", "--json")
	if r.code != 0 {
		t.Fatal(r)
	}
	var got struct {
		Argv          []string
		Env           map[string]string
		Home, Profile string
		Groups        []int
		PID, PGID     int
		SID           int
	}
	if err := json.Unmarshal([]byte(r.last()), &got); err != nil {
		t.Fatalf("%v in %v", err, r)
	}
	want := map[string]string{
		"ODD": " a=b\tc ", "EMPTY": "", "HOME": "/opt/data", "HERMES_HOME": "/opt/data", "HERMES_WRITE_SAFE_ROOT": "/opt/data",
		"HERMES_DISABLE_LAZY_INSTALLS": "1", "PYTHONDONTWRITEBYTECODE": "1",
	}
	for name, value := range want {
		if v, ok := got.Env[name]; !ok || v != value {
			t.Errorf("%s=%q (set: %v), want %q", name, v, ok, value)
		}
	}
	if path := got.Env["PATH"]; !strings.HasPrefix(path, "/command:/opt/hermes/bin:/opt/hermes/.venv/bin:/opt/data/.local/bin:") {
		t.Errorf("PATH=%q", path)
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

// TestOrphans makes ten thousand processes whose parents end before them.
func TestOrphans(t *testing.T) {
	parallel(t)
	c := start(t, setup{}, "sleep", "1000")
	c.must("sh", "-c", "i=0; while [ $i -lt 10000 ]; do ( (exit 0) & ); i=$((i+1)); done")
	eventually(t, settle, func() error { // the last of them may not have come to its end, and is no zombie before
		st, err := c.look()
		if err == nil && st.Init.Orphans < 10000 {
			err = fmt.Errorf("the init has reaped %d orphans, want 10000", st.Init.Orphans)
		}
		if err != nil {
			return err
		}
		for _, p := range c.processes() {
			if strings.HasPrefix(p.state, "Z") {
				return fmt.Errorf("a zombie is left: %+v", p)
			}
		}
		return nil
	})
}
