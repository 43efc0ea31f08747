package volume

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"hinit/internal/testkit"
)

func TestLinksAreRefused(t *testing.T) {
	testkit.NeedRoot(t)
	for _, tt := range []struct {
		name, rel, action string
		target            string
		env               map[string]string
		full              bool
	}{
		{name: "allow-listed", rel: "auth.json", action: "chown"},
		{name: "state", rel: "gateway_state.json", action: "chown", env: map[string]string{"HERMES_GATEWAY_BOOTSTRAP_STATE": "running"}},
		{name: "state dangling", rel: "gateway_state.json", action: "seed", target: "nowhere", env: map[string]string{"HERMES_GATEWAY_BOOTSTRAP_STATE": "running"}},
		{name: "auth dangling", rel: "auth.json", action: "seed", target: "nowhere", env: map[string]string{"HERMES_AUTH_JSON_BOOTSTRAP": "{}"}},
		{name: "config", rel: "config.yaml", action: "chown/chmod"},
		{name: "config dangling", rel: "config.yaml", action: "seed", target: "nowhere"},
		{name: "soul dangling", rel: "SOUL.md", action: "seed", target: "nowhere"},
		{name: "env", rel: ".env", action: "chown/chmod"},
		{name: "env key", rel: ".env", action: "append"},
		{name: "env dangling", rel: ".env", action: "seed", target: "nowhere"},
		{name: "profiles", rel: "profiles", action: "recursive chown", target: "dir"},
		{name: "cron", rel: "cron", action: "recursive chown", target: "dir"},
		{name: "parent", rel: "platforms", action: "recursive chown", target: "dir"},
		{name: "workspace", rel: "workspace", action: "recursive chown", target: "dir", full: true},
		{name: "logs", rel: "logs", action: "recursive chown", target: "dir", full: true},
		{name: "home itself", rel: "", action: "chown", target: "dir"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			home := newVolumeDir(t)
			outside := filepath.Dir(home) + "/outside"
			writeFile(t, outside+"/file", "secret")
			writeFile(t, outside+"/dir/deep/file", "secret")
			writeFile(t, outside+"/dir/pairing/file", "secret")
			target := tt.target
			if target == "" {
				target = "file"
			}
			path := filepath.Join(home, tt.rel)
			if tt.rel == "" {
				must(t, os.Remove(home))
			}
			must(t, os.Symlink(filepath.Join(outside, target), path))
			if !tt.full && tt.rel != "" {
				must(t, os.Chown(home, agentUID, agentGID))
			}
			before := testkit.TreeSnapshot(t, outside)
			o, messages := options(t, home, tt.env)
			writeInstallDir(t, o)
			r := prepareBoot(context.Background(), o)
			o.RepairEverything = true
			Repair(context.Background(), o, noProgress)
			refused := path
			if tt.name == "parent" {
				refused = home + "/platforms/pairing"
			}
			want := "[stage2] Warning: refusing " + tt.action + " through symlinked path " + refused + " — continuing"
			if !strings.Contains(messages.text()+"\n", want+"\n") {
				t.Errorf("said\n%s\nwant\n%s", messages.text(), want)
			}
			if len(r.Warnings) == 0 {
				t.Error("no warning in the report")
			}
			if got, err := os.Readlink(path); err != nil || got != filepath.Join(outside, target) {
				t.Errorf("the link is now %q (%v)", got, err)
			}
			if after := testkit.TreeSnapshot(t, outside); after != before {
				t.Errorf("outside changed:\n%s\nwas\n%s", after, before)
			}
		})
	}
}

func TestSeedsNeverOverwrite(t *testing.T) {
	testkit.NeedRoot(t)
	home := newVolumeDir(t)
	writeFile(t, home+"/.env", "API_SERVER_KEY=mine\n")
	writeFile(t, home+"/config.yaml", "mine")
	writeFile(t, home+"/SOUL.md", "mine")
	writeFile(t, home+"/auth.json", "mine")
	writeFile(t, home+"/gateway_state.json", "mine")
	writeFile(t, home+"/.install_method", " dock er\n")
	o, _ := options(t, home, map[string]string{"HERMES_AUTH_JSON_BOOTSTRAP": "theirs", "HERMES_GATEWAY_BOOTSTRAP_STATE": "running"})
	writeInstallDir(t, o)
	mustPrepareBoot(t, o)
	for _, name := range []string{"config.yaml", "SOUL.md", "auth.json", "gateway_state.json"} {
		if got := readFile(t, home+"/"+name); got != "mine" {
			t.Errorf("%s is %q", name, got)
		}
	}
	if got := readFile(t, home+"/.env"); got != "API_SERVER_KEY=mine\n" {
		t.Errorf(".env is %q", got)
	}
}

func TestInstallStamp(t *testing.T) {
	testkit.NeedRoot(t)
	for text, stays := range map[string]bool{"docker\n": false, " docker ": false, "pip\n": true, "docker pip": true} {
		home := newVolumeDir(t)
		writeFile(t, home+"/.install_method", text)
		o, _ := options(t, home, nil)
		mustPrepareBoot(t, o)
		if _, err := os.Lstat(home + "/.install_method"); (err == nil) != stays {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestServerKey(t *testing.T) {
	testkit.NeedRoot(t)
	for text, want := range map[string]string{
		"":                                "^API_SERVER_KEY=[0-9a-f]{64}\n$",
		"A=1":                             "^A=1\nAPI_SERVER_KEY=[0-9a-f]{64}\n$",
		"API_SERVER_KEY=\nA=1\n":          "^A=1\nAPI_SERVER_KEY=[0-9a-f]{64}\n$",
		"API_SERVER_KEY=\"\"\n":           "^API_SERVER_KEY=[0-9a-f]{64}\n$",
		"# API_SERVER_KEY=x\n":            "^# API_SERVER_KEY=x\nAPI_SERVER_KEY=[0-9a-f]{64}\n$",
		"API_SERVER_KEYS=x\n":             "^API_SERVER_KEYS=x\nAPI_SERVER_KEY=[0-9a-f]{64}\n$",
		"API_SERVER_KEY=k\n":              "^API_SERVER_KEY=k\n$",
		"export API_SERVER_KEY=k\n":       "^export API_SERVER_KEY=k\n$",
		"A=1\r\nAPI_SERVER_KEY = 'k'\r\n": "^A=1\r\nAPI_SERVER_KEY = 'k'\r\n$",
	} {
		home := newVolumeDir(t)
		writeFile(t, home+"/.env", text)
		o, messages := options(t, home, nil)
		mustPrepareBoot(t, o)
		got := readFile(t, home+"/.env")
		if !regexp.MustCompile(want).MatchString(got) {
			t.Errorf("%q became %q", text, got)
		}
		if made := strings.Contains(messages.text(), "Generated API_SERVER_KEY"); made != (got != text) {
			t.Errorf("%q: said %q", text, messages.text())
		}
		wantOwner(t, home+"/.env", fmt.Sprintf("%d:%d 0600", agentUID, agentGID))
	}
}

func TestMountedEnvFileGetsItsKey(t *testing.T) {
	testkit.NeedRoot(t)
	home := newVolumeDir(t)
	source := filepath.Dir(home) + "/host.env"
	writeFile(t, source, "A=1")
	writeFile(t, home+"/.env", "")
	if err := unix.Mount(source, home+"/.env", "", unix.MS_BIND, ""); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	t.Cleanup(func() { unix.Unmount(home+"/.env", unix.MNT_DETACH) })
	o, _ := options(t, home, nil)
	mustPrepareBoot(t, o)
	if got := readFile(t, source); !regexp.MustCompile("^A=1\nAPI_SERVER_KEY=[0-9a-f]{64}\n$").MatchString(got) {
		t.Errorf("the mounted file is %q", got)
	}
	wantOwner(t, source, fmt.Sprintf("%d:%d 0600", agentUID, agentGID))
}

func TestBootstrap(t *testing.T) {
	testkit.NeedRoot(t)
	base := tempDir(t)
	creds := base + "/creds"
	must(t, os.Mkdir(creds, 0o755))
	must(t, os.Chown(creds, agentUID, agentGID))
	must(t, os.Symlink(creds, base+"/link"))
	auth := func(dir string) map[string]string {
		return map[string]string{"HERMES_AUTH_JSON_BOOTSTRAP": "{\"a\": 1}", "HERMES_AUTH_HOME": dir}
	}
	mine := fmt.Sprintf("%d:%d ", agentUID, agentGID)
	for _, tt := range []struct {
		name, home string
		env        map[string]string
		file, want string
		owner      string
	}{
		{"auth", "a", map[string]string{"HERMES_AUTH_JSON_BOOTSTRAP": "{\"a\": 1}"}, "a/auth.json", "{\"a\": 1}", mine + "0600"},
		{"auth empty", "b", map[string]string{"HERMES_AUTH_JSON_BOOTSTRAP": ""}, "b/auth.json", "", ""},
		{"auth elsewhere", "c", auth(creds), "creds/auth.json", "{\"a\": 1}", mine + "0600"},
		{"and not here", "c", auth(creds), "c/auth.json", "", ""},
		{"auth of a profile", "d/profiles/coder", auth(creds + "/"), "creds/profiles/coder/auth.json", "{\"a\": 1}", mine + "0600"},
		{"auth home empty", "e", auth(""), "e/auth.json", "", ""},
		{"auth home relative", "f", auth("creds"), "f/auth.json", "", ""},
		{"auth home tilde", "g", auth("~/creds"), "g/auth.json", "", ""},
		{"auth home blank", "h", auth(creds + " "), "h/auth.json", "", ""},
		{"auth home control", "i", auth(creds + "\n"), "i/auth.json", "", ""},
		{"auth home root", "j", auth("/"), "j/auth.json", "", ""},
		{"auth home a link", "k", auth(base + "/link/sub/.."), "k/auth.json", "", ""},
		{"state", "l", map[string]string{"HERMES_GATEWAY_BOOTSTRAP_STATE": "running"}, "l/gateway_state.json", "{\"gateway_state\":\"running\"}\n", mine + "0644"},
		{"state stopped", "o", map[string]string{"HERMES_GATEWAY_BOOTSTRAP_STATE": "stopped"}, "o/gateway_state.json", "", ""},
		{"state 1", "p", map[string]string{"HERMES_GATEWAY_BOOTSTRAP_STATE": "1"}, "p/gateway_state.json", "", ""},
		{"state empty", "q", map[string]string{"HERMES_GATEWAY_BOOTSTRAP_STATE": ""}, "q/gateway_state.json", "", ""},
		{"state other", "m", map[string]string{"HERMES_GATEWAY_BOOTSTRAP_STATE": "Running"}, "m/gateway_state.json", "", ""},
		{"state unset", "n", nil, "n/gateway_state.json", "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o, messages := options(t, filepath.Join(base, tt.home), tt.env)
			prepareBoot(context.Background(), o)
			path := filepath.Join(base, tt.file)
			if tt.want == "" {
				if got, err := os.ReadFile(path); err == nil {
					t.Errorf("%s is there: %q", path, got)
				}
				want := fmt.Sprintf("HERMES_AUTH_HOME=%q is not an absolute directory: auth.json is seeded nowhere", tt.env["HERMES_AUTH_HOME"])
				if tt.name == "auth home a link" {
					want = "refusing credential residence creation through symlinked path " + base + "/link"
				}
				if strings.HasPrefix(tt.name, "auth home") && !strings.Contains(messages.text(), want) {
					t.Errorf("said %q, want %q", messages.text(), want)
				}
				return
			}
			if got := readFile(t, path); got != tt.want {
				t.Errorf("%s is %q", path, got)
			}
			wantOwner(t, path, tt.owner)
		})
	}
}

func TestBrowser(t *testing.T) {
	testkit.NeedRoot(t)
	home := newVolumeDir(t)
	browsers := filepath.Dir(home) + "/browsers"
	writeFile(t, browsers+"/a/chrome.so", "")
	writeFile(t, browsers+"/a/chrome", "not executable")
	env := map[string]string{"PLAYWRIGHT_BROWSERS_PATH": browsers}
	o, messages := options(t, home, env)
	if r := mustPrepareBoot(t, o); len(r.Env) != 0 || !strings.Contains(messages.text(), "Warning: no browser found") {
		t.Errorf("found %v, said %q", r.Env, messages.text())
	}
	path := browsers + "/b/c/headless_shell"
	writeFile(t, path, "")
	must(t, os.Chmod(path, 0o755))
	o, messages = options(t, home, env)
	r := mustPrepareBoot(t, o)
	if r.Env["AGENT_BROWSER_EXECUTABLE_PATH"] != path || !strings.Contains(messages.text(), "[stage2] Found agent-browser Chromium binary: "+path) {
		t.Errorf("found %v, said %q", r.Env, messages.text())
	}
	WriteVariableFiles(o, r.Env)
	if got := readFile(t, o.Image.Environment+"/AGENT_BROWSER_EXECUTABLE_PATH"); got != path {
		t.Errorf("the file says %q", got)
	}
	writeFile(t, o.Image.BakedBrowser, "/proc/self/exe\n")
	o, _ = options(t, home, env)
	if r := mustPrepareBoot(t, o); r.Env["AGENT_BROWSER_EXECUTABLE_PATH"] != "/proc/self/exe" {
		t.Errorf("found %v", r.Env)
	}
	env["AGENT_BROWSER_EXECUTABLE_PATH"] = "/set"
	o, messages = options(t, home, env)
	if r := mustPrepareBoot(t, o); len(r.Env) != 0 || messages.text() != "" {
		t.Errorf("found %v, said %q", r.Env, messages.text())
	}
}
