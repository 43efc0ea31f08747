package boot

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/fsutil"
)

func prepareOK(t testing.TB, o Options) Report {
	t.Helper()
	r := Prepare(context.Background(), o)
	if p, failed := r.Failed(); failed || r.Unusable {
		t.Errorf("phase %s: %s", p.Name, p.Error)
	}
	return r
}

func TestFreshVolume(t *testing.T) {
	asRoot(t)
	home := filepath.Join(tempDir(t), "home/hermes/.hermes") // with parents
	o, said := options(t, home, nil)
	install(t, o)
	r := prepareOK(t, o)
	if !r.Full {
		t.Error("a volume of root's is not looked through")
	}
	var names []string
	for _, p := range r.Phases {
		names = append(names, p.Name)
	}
	if got := strings.Join(names, " "); got != "home ownership directories seeds bootstrap browser" {
		t.Errorf("phases are %s", got)
	}
	wantOwner(t, filepath.Dir(home), "0:0 0755")
	for rel, mode := range map[string]string{
		"": "0755", ".env": "0600", "config.yaml": "0640", "SOUL.md": "0644", "cron": "0755", "logs": "0755", "logs/gateways": "0755",
		"platforms/pairing": "0755", "backups": "0755", "lazy-packages": "0755", "workspace": "0755", "skins": "0755", "pairing": "0755",
	} {
		wantOwner(t, filepath.Join(home, rel), fmt.Sprintf("%d:%d %s", agentUID, agentGID, mode))
	}
	if _, err := os.Lstat(home + "/profiles"); err == nil {
		t.Error("profiles was made")
	}
	if got := read(t, home+"/config.yaml"); got != "config: 1\n" {
		t.Errorf("config.yaml is %q", got)
	}
	if got := read(t, home+"/.env"); !regexp.MustCompile(`^A=b\nAPI_SERVER_KEY=[0-9a-f]{64}\n$`).MatchString(got) {
		t.Errorf(".env is %q", got)
	}
	want := "[stage2] Fixing ownership of " + home + " (targeted) to hermes (10000)\n[stage2] Generated API_SERVER_KEY for the loopback gateway api_server"
	if said.text() != want {
		t.Errorf("said\n%s\nwant\n%s", said.text(), want)
	}

	// The mark of an unfinished repair is still there, and goes with the repair.
	if r := prepareOK(t, o); !r.Full {
		t.Error("the repair that never happened is forgotten")
	}
	o.Full = true
	if res := Repair(context.Background(), o, nil); res.Stopped != "" || res.Failed != 0 {
		t.Errorf("repair: %s", res)
	}
	before := snapshot(t, home)
	o, said = options(t, home, nil)
	if r := prepareOK(t, o); r.Full || said.text() != "" {
		t.Errorf("the second boot says %q (full %v)", said.text(), r.Full)
	}
	if res := Repair(context.Background(), o, nil); res.Changed != 0 || said.text() != "" {
		t.Errorf("the second repair: %s, %q", res, said.text())
	}
	if after := snapshot(t, home); after != before {
		t.Errorf("the second boot changed something:\n%s\nwas\n%s", after, before)
	}
}

// TestAllowList: what is the agent's is repaired at every boot, and nothing else in the data directory.
func TestAllowList(t *testing.T) {
	asRoot(t)
	home := volume(t)
	give(t, home, agentUID)
	mine := append([]string{"config.yaml"}, agentFiles...)
	notMine := []string{"host_secret.json", "auth.json.bak", "SOUL.md", "sessions/x", "other/y", "workspace/z"}
	for _, name := range append(mine, notMine...) {
		write(t, home+"/"+name, "x")
	}
	for _, name := range []string{"profiles/coder/.env", "profiles/coder/gateway_state.json", "profiles/coder/deep/file", "cron/jobs.json", "logs/gateways/coder/current"} {
		write(t, home+"/"+name, "x")
	}
	o, said := options(t, home, nil)
	r := prepareOK(t, o)
	if r.Full || strings.Contains(said.text(), "Fixing") {
		t.Errorf("full %v: %s", r.Full, said.text())
	}
	for _, name := range mine {
		if uidOf(t, home+"/"+name) != agentUID {
			t.Errorf("%s was not repaired", name)
		}
	}
	for _, name := range append(notMine, "sessions", "workspace") {
		if uidOf(t, home+"/"+name) != 0 {
			t.Errorf("%s was given away", name)
		}
	}
	wantOwner(t, home+"/.env", fmt.Sprintf("%d:%d 0600", agentUID, agentGID))
	wantOwner(t, home+"/config.yaml", fmt.Sprintf("%d:%d 0640", agentUID, agentGID))
	wantOwner(t, home+"/profiles/coder/.env", fmt.Sprintf("%d:%d 0644", agentUID, agentGID)) // a profile's is not closed
	for _, name := range []string{"profiles", "profiles/coder", "profiles/coder/gateway_state.json", "cron", "logs", "logs/gateways", "logs/gateways/coder", "logs/gateways/coder/current"} {
		if uidOf(t, home+"/"+name) != agentUID {
			t.Errorf("%s was not repaired before the gateways start", name)
		}
	}
	for _, name := range []string{"profiles/coder/deep", "profiles/coder/deep/file", "cron/jobs.json"} {
		if uidOf(t, home+"/"+name) != 0 {
			t.Errorf("%s was repaired on the boot path", name)
		}
	}
	if res := Repair(context.Background(), o, nil); res.Changed != 3 {
		t.Errorf("repair: %s", res)
	}
	for _, name := range []string{"profiles/coder/deep", "profiles/coder/deep/file", "cron/jobs.json"} {
		if uidOf(t, home+"/"+name) != agentUID {
			t.Errorf("%s was not repaired later", name)
		}
	}
	if uidOf(t, home+"/sessions/x") != 0 || uidOf(t, home+"/host_secret.json") != 0 {
		t.Error("the repair went too far")
	}
}

// TestLinksAreRefused puts a link in every place that root acts on.
func TestLinksAreRefused(t *testing.T) {
	asRoot(t)
	for _, tt := range []struct {
		name, rel, action string
		target            string // "" for a file that exists
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
			home := volume(t)
			outside := filepath.Dir(home) + "/outside"
			write(t, outside+"/file", "secret")
			write(t, outside+"/dir/deep/file", "secret")
			write(t, outside+"/dir/pairing/file", "secret")
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
			before := snapshot(t, outside)
			o, said := options(t, home, tt.env)
			install(t, o)
			r := Prepare(context.Background(), o)
			o.Full = true
			Repair(context.Background(), o, nil)
			refused := path
			if tt.name == "parent" {
				refused = home + "/platforms/pairing"
			}
			want := "[stage2] Warning: refusing " + tt.action + " through symlinked path " + refused + " — continuing"
			if !strings.Contains(said.text()+"\n", want+"\n") {
				t.Errorf("said\n%s\nwant\n%s", said.text(), want)
			}
			if len(r.Warnings) == 0 {
				t.Error("no warning in the report")
			}
			if got, err := os.Readlink(path); err != nil || got != filepath.Join(outside, target) {
				t.Errorf("the link is now %q (%v)", got, err)
			}
			if after := snapshot(t, outside); after != before {
				t.Errorf("outside changed:\n%s\nwas\n%s", after, before)
			}
		})
	}
}

func TestSeedsNeverOverwrite(t *testing.T) {
	asRoot(t)
	home := volume(t)
	write(t, home+"/.env", "API_SERVER_KEY=mine\n")
	write(t, home+"/config.yaml", "mine")
	write(t, home+"/SOUL.md", "mine")
	write(t, home+"/auth.json", "mine")
	write(t, home+"/gateway_state.json", "mine")
	write(t, home+"/.install_method", " dock er\n") // not exactly
	o, _ := options(t, home, map[string]string{"HERMES_AUTH_JSON_BOOTSTRAP": "theirs", "HERMES_GATEWAY_BOOTSTRAP_STATE": "running"})
	install(t, o)
	prepareOK(t, o)
	for _, name := range []string{"config.yaml", "SOUL.md", "auth.json", "gateway_state.json"} {
		if got := read(t, home+"/"+name); got != "mine" {
			t.Errorf("%s is %q", name, got)
		}
	}
	if got := read(t, home+"/.env"); got != "API_SERVER_KEY=mine\n" {
		t.Errorf(".env is %q", got)
	}
}

func TestInstallStamp(t *testing.T) {
	asRoot(t)
	for text, stays := range map[string]bool{"docker\n": false, " docker ": false, "pip\n": true, "docker pip": true} {
		home := volume(t)
		write(t, home+"/.install_method", text)
		o, _ := options(t, home, nil)
		prepareOK(t, o)
		if _, err := os.Lstat(home + "/.install_method"); (err == nil) != stays {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestServerKey(t *testing.T) {
	asRoot(t)
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
		home := volume(t)
		write(t, home+"/.env", text)
		o, said := options(t, home, nil)
		prepareOK(t, o)
		got := read(t, home+"/.env")
		if !regexp.MustCompile(want).MatchString(got) {
			t.Errorf("%q became %q", text, got)
		}
		if made := strings.Contains(said.text(), "Generated API_SERVER_KEY"); made != (got != text) {
			t.Errorf("%q: said %q", text, said.text())
		}
		wantOwner(t, home+"/.env", fmt.Sprintf("%d:%d 0600", agentUID, agentGID))
	}
}

func TestMountedEnvFileGetsItsKey(t *testing.T) {
	asRoot(t)
	home := volume(t)
	source := filepath.Dir(home) + "/host.env"
	write(t, source, "A=1")
	write(t, home+"/.env", "")
	if err := unix.Mount(source, home+"/.env", "", unix.MS_BIND, ""); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	t.Cleanup(func() { unix.Unmount(home+"/.env", unix.MNT_DETACH) })
	o, _ := options(t, home, nil)
	prepareOK(t, o)
	if got := read(t, source); !regexp.MustCompile("^A=1\nAPI_SERVER_KEY=[0-9a-f]{64}\n$").MatchString(got) {
		t.Errorf("the mounted file is %q", got)
	}
	wantOwner(t, source, fmt.Sprintf("%d:%d 0600", agentUID, agentGID))
}

func TestBootstrap(t *testing.T) {
	asRoot(t)
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
		file, want string // path, and its content; "" for none
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
		{"state other", "m", map[string]string{"HERMES_GATEWAY_BOOTSTRAP_STATE": "Running"}, "m/gateway_state.json", "", ""},
		{"state unset", "n", nil, "n/gateway_state.json", "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o, said := options(t, filepath.Join(base, tt.home), tt.env)
			Prepare(context.Background(), o)
			path := filepath.Join(base, tt.file)
			if tt.want == "" {
				if got, err := os.ReadFile(path); err == nil {
					t.Errorf("%s is there: %q", path, got)
				}
				if strings.HasPrefix(tt.name, "auth home") && !strings.Contains(said.text(), "Warning") {
					t.Errorf("nothing was said: %q", said.text())
				}
				return
			}
			if got := read(t, path); got != tt.want {
				t.Errorf("%s is %q", path, got)
			}
			wantOwner(t, path, tt.owner)
		})
	}
}

func TestBrowser(t *testing.T) {
	asRoot(t)
	home := volume(t)
	browsers := filepath.Dir(home) + "/browsers"
	write(t, browsers+"/a/chrome.so", "")
	write(t, browsers+"/a/chrome", "not executable")
	env := map[string]string{"PLAYWRIGHT_BROWSERS_PATH": browsers}
	o, said := options(t, home, env)
	if r := prepareOK(t, o); len(r.Env) != 0 || !strings.Contains(said.text(), "Warning: no browser found") {
		t.Errorf("found %v, said %q", r.Env, said.text())
	}
	path := browsers + "/b/c/headless_shell"
	write(t, path, "")
	must(t, os.Chmod(path, 0o755))
	o, said = options(t, home, env)
	r := prepareOK(t, o)
	if r.Env["AGENT_BROWSER_EXECUTABLE_PATH"] != path || !strings.Contains(said.text(), "[stage2] Found agent-browser Chromium binary: "+path) {
		t.Errorf("found %v, said %q", r.Env, said.text())
	}
	Publish(o, r.Env)
	if got := read(t, o.Environment+"/AGENT_BROWSER_EXECUTABLE_PATH"); got != path {
		t.Errorf("the file says %q", got)
	}
	write(t, o.BakedBrowser, "/proc/self/exe\n") // no regular file, but a link to one: the agent may run it
	o, _ = options(t, home, env)
	if r := prepareOK(t, o); r.Env["AGENT_BROWSER_EXECUTABLE_PATH"] != "/proc/self/exe" {
		t.Errorf("found %v", r.Env)
	}
	env["AGENT_BROWSER_EXECUTABLE_PATH"] = "/set"
	o, said = options(t, home, env)
	if r := prepareOK(t, o); len(r.Env) != 0 || said.text() != "" {
		t.Errorf("found %v, said %q", r.Env, said.text())
	}
}

func TestRealHome(t *testing.T) {
	asRoot(t)
	home := volume(t)
	real := filepath.Dir(home) + "/real/home"
	o, _ := options(t, home, map[string]string{"HERMES_REAL_HOME": real})
	if r := prepareOK(t, o); r.Home != real {
		t.Errorf("HOME is %q", r.Home)
	}
	wantOwner(t, real, fmt.Sprintf("%d:%d 0755", agentUID, agentGID))
	wantOwner(t, filepath.Dir(real), "0:0 0755")
	// What was there before stays the administrator's.
	o, _ = options(t, home, map[string]string{"HERMES_REAL_HOME": filepath.Dir(real)})
	prepareOK(t, o)
	wantOwner(t, filepath.Dir(real), "0:0 0755")
}

// TestRealHomeMayBeTheRootDirectory: it is an absolute path, and stays root's.
func TestRealHomeMayBeTheRootDirectory(t *testing.T) {
	asRoot(t)
	var before, after unix.Stat_t
	if err := unix.Stat("/", &before); err != nil {
		t.Fatal(err)
	}
	for _, root := range []string{"/", "//", "/."} {
		o, said := options(t, volume(t), map[string]string{"HERMES_REAL_HOME": root})
		if r := prepareOK(t, o); r.Home != "/" || strings.Contains(said.text(), "REAL_HOME") {
			t.Errorf("HOME is %q for %q, said %q", r.Home, root, said.text())
		}
	}
	if err := unix.Stat("/", &after); err != nil || after.Uid != before.Uid || after.Gid != before.Gid || after.Mode != before.Mode {
		t.Errorf("/ was %d:%d %o and is %d:%d %o: %v", before.Uid, before.Gid, before.Mode, after.Uid, after.Gid, after.Mode, err)
	}
}

func TestLogsElsewhere(t *testing.T) {
	asRoot(t)
	home := volume(t)
	o, _ := options(t, home, nil)
	o.Logs = filepath.Dir(home) + "/var/log/gateways"
	prepareOK(t, o)
	wantOwner(t, o.Logs, fmt.Sprintf("%d:%d 0755", agentUID, agentGID))
}

func TestNoDataDirectory(t *testing.T) {
	asRoot(t)
	dir := tempDir(t)
	write(t, dir+"/file", "")
	o, said := options(t, dir+"/file/data", nil)
	r := Prepare(context.Background(), o)
	if p, failed := r.Failed(); !failed || p.Name != "home" || !r.Unusable || len(r.Phases) != 2 || r.Phases[1].Name != "browser" {
		t.Errorf("report is %+v", r)
	}
	if strings.Count(said.text(), "\n") != 0 || !strings.Contains(said.text(), "no data directory") {
		t.Errorf("said %q", said.text())
	}
}

// TestHangIsAbandoned has a phase that blocks until the test lets it go, as a disk does that doesn't answer.
func TestHangIsAbandoned(t *testing.T) { synctest.Test(t, hangIsAbandoned) }

func hangIsAbandoned(t *testing.T) {
	o, said := options(t, "/data", nil)
	o.PhaseBudget = 50 * time.Millisecond
	o = o.withDefaults()
	release, gone := make(chan struct{}), make(chan struct{})
	ran := map[string]bool{}
	ok := func(name string) func(context.Context, *step) error {
		return func(context.Context, *step) error { ran[name] = true; return nil }
	}
	start := time.Now()
	r := runPhases(context.Background(), o, []phase{
		{"first", true, ok("first")},
		{"hangs", true, func(ctx context.Context, s *step) error {
			defer close(gone)
			s.warn("before")
			<-release
			if ctx.Err() == nil {
				t.Error("the context of an abandoned phase has not ended")
			}
			s.warn("after")
			s.env["LATE"] = "x"
			return nil
		}},
		{"skipped", true, ok("skipped")},
		{"independent", false, ok("independent")},
	})
	if took := time.Since(start); took != o.PhaseBudget {
		t.Errorf("it was waited for %v", took)
	}
	close(release)
	<-gone
	if !ran["first"] || ran["skipped"] || !ran["independent"] {
		t.Errorf("ran %v", ran)
	}
	if len(r.Phases) != 3 || !r.Phases[1].Abandoned || r.Phases[1].Error == "" || !r.Unusable || len(r.Env) != 0 {
		t.Errorf("report is %+v", r)
	}
	if text := said.text(); !strings.HasPrefix(text, "[stage2] Warning: before\n[stage2] Warning: /data does not answer: the boot step \"hangs\" was abandoned") || strings.Count(text, "\n") != 1 {
		t.Errorf("said %q", text)
	}
	if len(r.Warnings) != 2 {
		t.Errorf("warnings are %q", r.Warnings)
	}
}

func TestTotalBudget(t *testing.T) { synctest.Test(t, totalBudget) }

func totalBudget(t *testing.T) {
	o, _ := options(t, "/data", nil)
	o.Budget = 50 * time.Millisecond
	var gone []chan struct{}
	var phases []phase
	for range 3 {
		done := make(chan struct{})
		gone = append(gone, done)
		phases = append(phases, phase{"x", false, func(ctx context.Context, _ *step) error {
			defer close(done)
			<-ctx.Done()
			return nil
		}})
	}
	start := time.Now()
	r := runPhases(context.Background(), o.withDefaults(), phases)
	for _, done := range gone {
		<-done
	}
	if len(r.Phases) != 3 || time.Since(start) != o.Budget {
		t.Errorf("%+v after %s", r, time.Since(start))
	}
}

// TestMountsBelow: a directory of the agent's that is a mount gets what it needs, and what is mounted further down nothing.
func TestMountsBelow(t *testing.T) {
	asRoot(t)
	home := volume(t)
	mount(t, home+"/workspace") // as Docker makes it: root's
	mount(t, home+"/profiles")  // a volume of its own
	mount(t, home+"/skills")    // the host's
	mount(t, home+"/cron/elsewhere")
	must(t, os.Chown(home+"/skills", 1000, 1000))
	mount(t, home+"/profiles/coder")
	for _, name := range []string{"workspace/f", "skills/f", "profiles/coder/.env", "profiles/writer/deep/f", "cron/elsewhere/f"} {
		write(t, home+"/"+name, "")
	}
	o, _ := options(t, home, nil)
	prepareOK(t, o)
	for rel, uid := range map[string]int{
		"workspace": agentUID, "profiles": agentUID, "skills": 1000, "profiles/coder": agentUID, "profiles/coder/.env": agentUID,
		"profiles/writer": agentUID, "cron": agentUID, "cron/elsewhere": 0,
	} {
		if got := uidOf(t, home+"/"+rel); got != uid {
			t.Errorf("%s belongs to %d, want %d", rel, got, uid)
		}
	}
	o.Full = true
	res := Repair(context.Background(), o, nil)
	for rel, uid := range map[string]int{"workspace/f": 0, "skills/f": 0, "cron/elsewhere": 0, "cron/elsewhere/f": 0, "profiles/writer/deep/f": agentUID} {
		if got := uidOf(t, home+"/"+rel); got != uid {
			t.Errorf("after the repair %s belongs to %d, want %d", rel, got, uid)
		}
	}
	if res.Mounts != 4 || res.Stopped != "" {
		t.Errorf("repair: %+v", res)
	}
}

// childChecks run in a process of its own with less than root's rights.
var childChecks = map[string]func(home string) error{
	// without root at all: everything that needs no other identity
	"user": func(home string) error {
		said := &recorder{}
		o := optionsIn(home, filepath.Dir(home), map[string]string{"HERMES_GATEWAY_BOOTSTRAP_STATE": "running"}, said)
		r := Prepare(context.Background(), o)
		if p, failed := r.Failed(); failed {
			return fmt.Errorf("phase %s: %s", p.Name, p.Error)
		}
		if said.text() != "[stage2] Generated API_SERVER_KEY for the loopback gateway api_server" {
			return fmt.Errorf("said %q", said.text())
		}
		if _, err := os.Stat(home + "/gateway_state.json"); err != nil {
			return err
		}
		if res := Repair(context.Background(), o, nil); res.Seen != 0 {
			return fmt.Errorf("repaired %+v", res)
		}
		return nil
	},
	// root that may become the agent but not give anything away, as in a rootless container with a foreign mount
	"nochown": func(home string) error {
		said := &recorder{}
		o := optionsIn(home, filepath.Dir(home), nil, said)
		r := Prepare(context.Background(), o)
		if p, failed := r.Failed(); failed {
			return fmt.Errorf("phase %s: %s", p.Name, p.Error)
		}
		want := "[stage2] Fixing ownership of " + home + " (targeted) to hermes (10000)\n" +
			"[stage2] Warning: chown " + home + " failed (rootless container?) — continuing"
		if got := said.text(); got != want {
			return fmt.Errorf("said %q, want %q", got, want)
		}
		if r.Full {
			return errors.New("a repair is wanted that can't do anything")
		}
		if res := Repair(context.Background(), o, nil); res.Changed != 0 || res.Failed == 0 {
			return fmt.Errorf("repaired %+v", res)
		}
		return nil
	},
	// nothing but the capabilities that the documentation lists
	"fewcaps": func(home string) error {
		o := optionsIn(home, filepath.Dir(home), nil, &recorder{})
		if !o.Agent.Switches() {
			return errors.New("it can't become the agent")
		}
		r := Prepare(context.Background(), o)
		if p, failed := r.Failed(); failed {
			return fmt.Errorf("phase %s: %s", p.Name, p.Error)
		}
		o.Full = true
		if res := Repair(context.Background(), o, nil); res.Failed != 0 || res.Changed == 0 {
			return fmt.Errorf("repaired %+v", res)
		}
		if lines := Modes(ModesOptions{UID: 0, Agent: o.Agent, AgentUID: agentUID, Known: true, Name: "hermes"}); len(lines) > 0 && strings.Contains(strings.Join(lines, "\n"), "CAP_") {
			return fmt.Errorf("modes are %q", lines)
		}
		return nil
	},
	// the main thread is at work as the agent's user, and another one looks
	"mainthread": func(home string) error {
		o := optionsIn(home, filepath.Dir(home), nil, &recorder{})
		if unix.Gettid() != os.Getpid() || unix.Setfsuid(agentUID) != nil {
			return errors.New("the main thread is not the agent's user")
		}
		lines := make(chan []string)
		go func() {
			lines <- Modes(ModesOptions{UID: 0, Agent: o.Agent, AgentUID: agentUID, Known: true, Name: "hermes"})
		}()
		if said := <-lines; strings.Contains(strings.Join(said, "\n"), "CAP_") {
			return fmt.Errorf("modes are %q", said)
		}
		return nil
	},
	// no capabilities at all
	"nocaps": func(home string) error {
		said := &recorder{}
		o := optionsIn(home, filepath.Dir(home), nil, said)
		if o.Agent.Switches() {
			return errors.New("it can become the agent")
		}
		r := Prepare(context.Background(), o)
		if p, failed := r.Failed(); failed {
			return fmt.Errorf("phase %s: %s", p.Name, p.Error)
		}
		lines := strings.Join(Modes(ModesOptions{UID: 0, Agent: o.Agent, AgentUID: agentUID, Known: true, Name: "hermes"}), "\n")
		if !strings.Contains(lines, "cannot be started") {
			return fmt.Errorf("modes are %q", lines)
		}
		return nil
	},
}

// TestNoCapabilityIsMissedThatIsThere: what a user saw was a container with Docker's capabilities that took over from another one and
// warned of "no CAP_CHOWN".
func TestNoCapabilityIsMissedThatIsThere(t *testing.T) {
	asRoot(t)
	inChild(t, "mainthread", volume(t), func(*exec.Cmd) {})
}

func TestWithoutRoot(t *testing.T) {
	asRoot(t)
	home := volume(t)
	must(t, os.Chown(home, agentUID, agentGID))
	o, _ := options(t, home, nil)
	install(t, o)
	inChild(t, "user", home, func(cmd *exec.Cmd) {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: agentUID, Gid: agentGID}}
	})
	wantOwner(t, home+"/config.yaml", fmt.Sprintf("%d:%d 0640", agentUID, agentGID))
}

func TestWithoutTheRightToChown(t *testing.T) {
	asRoot(t)
	home := volume(t)
	must(t, os.Chmod(home, 0o777)) // or else the agent could do nothing in it
	write(t, home+"/auth.json", "")
	write(t, home+"/profiles/coder/.env", "")
	limited(t, "nochown", home, func(c int) bool { return c != unix.CAP_CHOWN })
	if uidOf(t, home+"/sessions") != agentUID {
		t.Error("directories are not made as the agent")
	}
	if _, err := os.Lstat(home + "/" + pendingName); err == nil {
		t.Error("the mark of a repair is left")
	}
}

// TestFewCapabilities proves the list of the documentation: with all others dropped the boot does its work.
func TestFewCapabilities(t *testing.T) {
	asRoot(t)
	home := volume(t)
	write(t, home+"/workspace/private/f", "")
	must(t, os.Chmod(home+"/workspace/private", 0o700))
	give(t, home+"/workspace/private", 1234) // closed to root without CAP_DAC_OVERRIDE
	limited(t, "fewcaps", home, func(c int) bool {
		switch c {
		case unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_SETUID, unix.CAP_SETGID, unix.CAP_KILL:
			return true
		}
		return false
	})
	if uidOf(t, home+"/workspace/private/f") != agentUID {
		t.Error("a closed directory was not repaired")
	}
}

func TestNoCapabilities(t *testing.T) {
	asRoot(t)
	limited(t, "nocaps", volume(t), func(int) bool { return false })
}

// limited runs a check as root with the capabilities that keep accepts.
func limited(t *testing.T, name, home string, keep func(int) bool) {
	t.Helper()
	inChild(t, name, home, func(cmd *exec.Cmd) {
		setpriv, err := exec.LookPath("setpriv")
		if err != nil {
			if os.Getenv("CI") == "true" {
				t.Fatal(err)
			}
			t.Skip(err)
		}
		set := "-all"
		for c := 0; c <= unix.CAP_LAST_CAP; c++ {
			if keep(c) {
				set += fmt.Sprintf(",+cap_%d", c)
			}
		}
		cmd.Path, cmd.Args = setpriv, []string{setpriv, "--bounding-set", set, "--inh-caps", "-all", "/proc/" + fmt.Sprint(os.Getpid()) + "/exe"}
	})
}

func TestModes(t *testing.T) {
	self, switches := fsutil.Self(), agent()
	full := procStatus("CapEff:\t000001ffffffffff\nNoNewPrivs:\t0\n")
	for _, tt := range []struct {
		name   string
		o      ModesOptions
		status procStatus
		ro, no bool
		want   []string // the beginning of each line
		root   bool
	}{
		{"root", ModesOptions{0, switches, agentUID, true, "hermes"}, full, false, false, nil, true},
		{"agent", ModesOptions{10000, switches, agentUID, true, "hermes"}, full, false, false, []string{"started as uid 10000: no change"}, true},
		{"anybody", ModesOptions{1234, switches, agentUID, true, "hermes"}, full, false, false, []string{"started as uid 1234, which is not hermes"}, true},
		{"unknown", ModesOptions{1234, self, 1234, false, "hermes"}, full, false, false, []string{"started as uid 1234: no change"}, false},
		{"read-only", ModesOptions{0, self, 0, true, "root"}, full, true, true, []string{"the root file system", "/run cannot"}, true},
		{"no capabilities", ModesOptions{0, switches, agentUID, true, "hermes"}, "CapEff:\t0\nNoNewPrivs:\t1\n", false, false, []string{"no CAP_KILL", "no CAP_CHOWN", "no CAP_DAC_OVERRIDE", "no_new_privs"}, true},
	} {
		if tt.root && os.Geteuid() != 0 {
			continue
		}
		got := modes(tt.o, tt.status, tt.ro, tt.no)
		if len(got) != len(tt.want) {
			t.Errorf("%s: got %q", tt.name, got)
			continue
		}
		for i := range got {
			if !strings.HasPrefix(got[i], tt.want[i]) || strings.Contains(got[i], "\n") {
				t.Errorf("%s: got %q, want %q", tt.name, got[i], tt.want[i])
			}
		}
	}
}

// TestHomeThatCannotBeListedIsRepairedAllTheSame: root without CAP_DAC_OVERRIDE may go through a directory that it can't list.
func TestHomeThatCannotBeListedIsRepairedAllTheSame(t *testing.T) {
	d, err := fsutil.OpenDir(t.TempDir(), nil)
	must(t, err)
	if there := names(d); there(".env") {
		t.Error("an empty directory has a name in it")
	}
	must(t, d.Close())
	if there := names(d); !there(".env") || !there("platforms/pairing") {
		t.Error("a directory that can't be listed is taken for empty")
	}
}
