package sandbox

import (
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

func optionsFromMap(env map[string]string) (Options, []string, error) {
	return FromEnv(func(name string) (string, bool) { v, ok := env[name]; return v, ok })
}

// TestEveryVariableIsRead checks that each variable reaches the options (contract, 19.10).
func TestEveryVariableIsRead(t *testing.T) {
	base := func() string { o, _, _ := optionsFromMap(nil); return optionsText(o) }()
	for name, value := range map[string]string{
		"TERMINAL_DOCKER_IMAGE": "debian:12", "TERMINAL_DOCKER_FORWARD_ENV": `["A"]`, "TERMINAL_DOCKER_ENV": `{"A":1}`, "TERMINAL_DOCKER_VOLUMES": `["/a:/b"]`,
		"TERMINAL_DOCKER_EXTRA_ARGS": `["--privileged=false"]`, "TERMINAL_DOCKER_RUN_AS_HOST_USER": "yes",
		"TERMINAL_DOCKER_ORPHAN_REAPER": "0", "TERMINAL_CONTAINER_PERSISTENT": "no",
		"TERMINAL_DOCKER_MOUNT_CWD_TO_WORKSPACE": "TRUE", "TERMINAL_CONTAINER_CPU": "0.5", "TERMINAL_CONTAINER_MEMORY": "0", "TERMINAL_CONTAINER_DISK": "0",
		"TERMINAL_CWD": "/srv", "TERMINAL_TIMEOUT": "7", "TERMINAL_LIFETIME_SECONDS": "9", "TERMINAL_SANDBOX_DIR": "/elsewhere",
		"TERMINAL_DOCKER_NETWORK": "none", "HINIT_SANDBOX_RUNTIME": "runsc", "HINIT_SANDBOX_SHELL": "sh",
		"HINIT_SANDBOX_HELPER": "none", "DOCKER_HOST": "tcp://h:1", "HERMES_HOME": "/srv/profiles/coder",
	} {
		o, _, err := optionsFromMap(map[string]string{name: value})
		if err != nil || optionsText(o) == base {
			t.Errorf("%s=%s changes nothing; %v", name, value, err)
		}
	}
}

func optionsText(o Options) string {
	var b strings.Builder
	for _, part := range []any{
		o.Image, o.ForwardEnv, o.Env, o.Volumes, o.ExtraArgs, o.MountCwd, o.HostUser, o.PersistFS, o.SweepOrphans, o.CPUs, o.MemoryMB, o.DiskMB,
		o.Cwd, o.HostCwd, o.Timeout, o.Lifetime, o.Home, o.Dir, o.Profile, o.Network, o.Runtime, o.Shell, o.HelperPath, o.EngineAddress,
	} {
		b.WriteString(strings.TrimSpace(errorString(part)) + "|")
	}
	return b.String()
}

func TestDefaults(t *testing.T) {
	o, warnings, err := optionsFromMap(map[string]string{"HERMES_HOME": "/opt/data", "TERMINAL_DOCKER_ORPHAN_REAPER": "on"})
	if err != nil || len(warnings) != 0 {
		t.Fatal(warnings, err)
	}
	if o.Timeout != 180*time.Second || o.Lifetime != 300*time.Second || o.MemoryMB != 5120 || o.DiskMB != 51200 || !o.PersistFS ||
		o.Dir != "/opt/data/sandboxes" || o.Profile != "default" || o.Cwd != "/root" || o.SweepOrphans /* "on" is not yes */ {
		t.Errorf("%+v", o)
	}
	for home, profile := range map[string]string{"/opt/data": "default", "/opt/data/profiles/coder": "coder", "/srv/x": "custom"} {
		if o, _, _ := optionsFromMap(map[string]string{"HERMES_HOME": home}); o.Profile != profile {
			t.Errorf("%s: profile %q", home, o.Profile)
		}
	}
}

// TestBadOptions checks that the error for an invalid option names the variable and quotes the
// value.
func TestBadOptions(t *testing.T) {
	for _, c := range []struct{ name, value, want string }{
		{"TERMINAL_DOCKER_IMAGE", "two words", "name of an image"},
		{"TERMINAL_DOCKER_IMAGE", "--privileged", "name of an image"},
		{"TERMINAL_DOCKER_FORWARD_ENV", "A,B", "JSON array"},
		{"TERMINAL_DOCKER_FORWARD_ENV", `["A"`, "JSON array"},
		{"TERMINAL_DOCKER_FORWARD_ENV", `["A"] x`, "JSON array"},
		{"TERMINAL_DOCKER_FORWARD_ENV", `{"A":1}`, "JSON array"},
		{"TERMINAL_DOCKER_FORWARD_ENV", `"A"`, "JSON array"},
		{"TERMINAL_DOCKER_ENV", "A=1", "JSON object"},
		{"TERMINAL_DOCKER_ENV", `{"A":}`, "JSON object"},
		{"TERMINAL_DOCKER_ENV", `{'A':1}`, "JSON object"},
		{"TERMINAL_DOCKER_VOLUMES", "/a:/b", "JSON array"},
		{"TERMINAL_DOCKER_VOLUMES", `["/a:/b"`, "JSON array"},
		{"TERMINAL_DOCKER_VOLUMES", `["/a:b"]`, "absolute path"},
		{"TERMINAL_DOCKER_VOLUMES", `[":/b"]`, "SOURCE:TARGET"},
		{"TERMINAL_DOCKER_VOLUMES", `["/a:/"]`, "root"},
		{"TERMINAL_DOCKER_VOLUMES", `["/a:/b:rq"]`, "no option of a mount"},
		{"TERMINAL_DOCKER_VOLUMES", `["/a:/b:ro:x"]`, "SOURCE:TARGET"},
		{"TERMINAL_DOCKER_VOLUMES", `["a/b:/c"]`, "an absolute path or the name of a volume"},
		{"TERMINAL_DOCKER_EXTRA_ARGS", "--shm-size 1g", "JSON array"},
		{"TERMINAL_DOCKER_EXTRA_ARGS", `["--no-such-flag"]`, "flags of docker run"},
		{"TERMINAL_DOCKER_EXTRA_ARGS", `["--memory","much"]`, "flags of docker run"},
		{"TERMINAL_DOCKER_EXTRA_ARGS", `["--memory"]`, "flags of docker run"},
		{"TERMINAL_CONTAINER_CPU", "two", "number of processors"},
		{"TERMINAL_CONTAINER_CPU", "-1", "number of processors"},
		{"TERMINAL_CONTAINER_CPU", "NaN", "number of processors"},
		{"TERMINAL_CONTAINER_CPU", "inf", "number of processors"},
		{"TERMINAL_CONTAINER_CPU", "1,5", "number of processors"},
		{"TERMINAL_CONTAINER_MEMORY", "5g", "number of megabytes"},
		{"TERMINAL_CONTAINER_MEMORY", "-5", "number of megabytes"},
		{"TERMINAL_CONTAINER_MEMORY", "1.5", "number of megabytes"},
		{"TERMINAL_CONTAINER_MEMORY", "99999999999999999999", "number of megabytes"},
		{"TERMINAL_CONTAINER_DISK", "full", "number of megabytes"},
		{"TERMINAL_CONTAINER_DISK", "-1", "number of megabytes"},
		{"TERMINAL_TIMEOUT", "3m", "number of seconds"},
		{"TERMINAL_TIMEOUT", "-3", "number of seconds"},
		{"TERMINAL_TIMEOUT", "", ""},
		{"TERMINAL_LIFETIME_SECONDS", "never", "number of seconds"},
		{"TERMINAL_LIFETIME_SECONDS", "1e3", "number of seconds"},
		{"TERMINAL_SANDBOX_DIR", "/a:b", "without colons"},
		{"HERMES_HOME", "relative", "absolute"},
		{"DOCKER_HOST", "localhost", "an address"},
		{"DOCKER_HOST", "ssh://me@there", "ssh -L"},
		{"DOCKER_HOST", "gopher://x", "unix or tcp"},
		{"HINIT_SANDBOX_RUNTIME", "a\nb", "one line"},
	} {
		home := t.TempDir()
		env := map[string]string{"HERMES_HOME": home, c.name: c.value}
		_, _, err := optionsFromMap(env)
		if c.want == "" {
			if err != nil {
				t.Errorf("%s=%q: %v", c.name, c.value, err)
			}
			continue
		}
		var bad *OptionError
		if !errors.As(err, &bad) || bad.Name != c.name || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "cannot use "+c.name+"=") {
			t.Errorf("%s=%q: %v", c.name, c.value, err)
		}
		if entries, _ := os.ReadDir(home); len(entries) != 0 {
			t.Errorf("%s=%q: something was made", c.name, c.value)
		}
	}
	t.Run("several at once are all told", func(t *testing.T) {
		_, _, err := optionsFromMap(map[string]string{"TERMINAL_TIMEOUT": "x", "TERMINAL_CONTAINER_CPU": "y"})
		if err == nil || !strings.Contains(err.Error(), "TERMINAL_TIMEOUT") || !strings.Contains(err.Error(), "TERMINAL_CONTAINER_CPU") {
			t.Error(err)
		}
	})
	t.Run("a manager", func(t *testing.T) {
		o := fakeOptions(t)
		o.HelperPath = o.Dir + "/missing"
		f := newFake()
		if _, err := NewManager(f, o); err == nil || !strings.Contains(err.Error(), "HINIT_SANDBOX_HELPER") {
			t.Error(err)
		}
		if entries, _ := os.ReadDir(o.Dir); len(entries) != 0 || len(f.calls) != 0 {
			t.Error("something was made")
		}
	})
	t.Run("flags that only the run shows", func(t *testing.T) {
		f := newFake()
		m := fakeManager(t, f, func(o *Options) { o.ExtraArgs = []string{"image"} })
		if _, err := m.Open(t.Context(), Key{}); err == nil || !strings.Contains(err.Error(), "TERMINAL_DOCKER_EXTRA_ARGS") {
			t.Error(err)
		}
		f.wantCalls(t, "create", 0)
	})
}

// TestOddOptionsAreDropped checks which invalid values cause only a warning (contract, 19.3).
func TestOddOptionsAreDropped(t *testing.T) {
	o, warnings, err := optionsFromMap(map[string]string{
		"TERMINAL_DOCKER_FORWARD_ENV": `["A"," A ","B",7,"","1X","a-b","B"]`,
		"TERMINAL_DOCKER_ENV":         `{"S":"x","T":true,"F":0.5,"I":8080,"L":[1],"O":{},"bad-name":"x","N":null}`,
		"TERMINAL_DOCKER_VOLUMES":     `["/a:/b", "nocolon", "", 5, "named:/c:ro"]`,
		"TERMINAL_DOCKER_EXTRA_ARGS":  `["--rm", 5]`, "TERMINAL_CWD": "/home/me/src",
	})
	if err != nil && !strings.Contains(err.Error(), "--rm") {
		t.Fatal(err)
	}
	if errorString(o.ForwardEnv) != "[A B]" || errorString(o.Env) != "map[F:0.5 I:8080 S:x T:True]" || !slices.EqualFunc(o.Volumes, []string{"/a /b false", "named /c true"}, func(m Mount, want string) bool {
		return m.Source+" "+m.Target+" "+strconv.FormatBool(m.ReadOnly) == want
	}) ||
		o.Cwd != "/root" || len(warnings) != 11 {
		t.Errorf("%v %v %v %v\n%d: %s", o.ForwardEnv, o.Env, o.Volumes, o.Cwd, len(warnings), strings.Join(warnings, "\n"))
	}
	for _, name := range []string{"TERMINAL_DOCKER_ENV", "TERMINAL_DOCKER_VOLUMES"} {
		if o, warnings, err := optionsFromMap(map[string]string{name: "5"}); err != nil || len(warnings) != 1 || len(o.Env)+len(o.Volumes) != 0 {
			t.Errorf("%s: %q, %v", name, warnings, err)
		}
	}
}

func TestStartDirectory(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct{ env, value, cwd, host string }{
		"tilde":            {"", "~", "/root", ""},
		"below tilde":      {"", "~/src", "/root/src", ""},
		"inside":           {"", "/srv", "/srv", ""},
		"relative":         {"", "src", "/root", ""},
		"a Mac's":          {"", "/Users/me", "/root", ""},
		"mounted":          {"yes", dir, "/workspace", dir},
		"mounted, Windows": {"yes", `C:\src`, "/workspace", `C:\src`},
		"mounted, inside":  {"yes", "/workspace/x", "/workspace/x", ""},
	} {
		o, _, err := optionsFromMap(map[string]string{"TERMINAL_DOCKER_MOUNT_CWD_TO_WORKSPACE": c.env, "TERMINAL_CWD": c.value})
		if err != nil || o.Cwd != c.cwd || o.HostCwd != c.host {
			t.Errorf("%s: %q, %q, %v", name, o.Cwd, o.HostCwd, err)
		}
	}
}
