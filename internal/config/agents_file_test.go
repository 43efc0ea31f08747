package config

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestAFileThatTheAgentCanWriteSetsNothingOfRoots(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root has something to lose")
	}
	refused := map[string]string{
		"services.x.user":            "services: {x: {command: [id], user: root}}",
		"services.dashboard.user":    `services: {dashboard: {user: "0:0"}}`,
		"services.x.limits":          "services: {x: {command: [id], limits: {nofile: 1000000}}}",
		"boot.hooks":                 "boot: {hooks: [{command: [id], user: root}]}",
		"boot.strict":                "boot: {strict: true}",
		"home":                       "home: /srv",
		"agent.user":                 "agent: {user: root}",
		"agent.binary":               "agent: {binary: /opt/data/hermes}",
		"logs.dir":                   "logs: {dir: /var/log}",
		"logs.console_stall":         "logs: {console_stall: 1h}",
		"logs.max_line_kb":           "logs: {max_line_kb: 65536}",
		"control.socket":             "control: {socket: /opt/data/s}",
		"control.others":             "control: {others: none}",
		"services.x.user, an anchor": "services: {y: &y {command: [id], user: nobody}, x: *y}",
	}
	for key, text := range refused {
		path := writeFile(t, text)
		if _, err := Load(Options{Path: path, Env: envLookup(nil)}); err != nil {
			t.Errorf("%s in a file of root's: %v", key, err)
		}
		if err := os.Chown(path, otherUID, 0); err != nil {
			t.Fatal(err)
		}
		key, _, _ = strings.Cut(key, ",")
		want := "cannot set " + key + " here: it is root's to decide, and " + path + " belongs to uid 10000; chown root " + path
		if _, err := Load(Options{Path: path, Env: envLookup(nil)}); err == nil || !strings.Contains(err.Error(), path+":1: ") || !strings.Contains(err.Error(), want) {
			t.Errorf("%s in a file of the agent's: %v", key, err)
		}
		if text := ReadTrustedFile(envLookup(map[string]string{"HINIT_CONFIG": path})); text != nil {
			t.Errorf("%s: the socket is looked for in %s", key, text)
		}
	}
}

// The error of a reload must quote nothing from a file that only root may read. The agent can put a link to such a file in
// place of hinit.yaml on the volume.
func TestAReloadShowsTheAgentNoFileOfRoots(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root has something to lose")
	}
	secret := writeFile(t, "TOKEN=abcdef")
	for name, put := range map[string]func(path string) error{
		"link": func(path string) error { return errors.Join(os.Symlink(secret, path), os.Lchown(path, otherUID, 0)) },
		"link of the process": func(path string) error {
			return errors.Join(os.Symlink("/proc/self/environ", path), os.Lchown(path, otherUID, 0))
		},
		"file": func(path string) error { return errors.Join(os.Link(secret, path), os.Chmod(path, 0o600)) },
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, "hinit.yaml")
		if err := errors.Join(os.Chown(dir, otherUID, 0), put(path)); err != nil {
			t.Fatal(err)
		}
		_, err := Load(Options{Path: path, Env: envLookup(nil)})
		if err == nil || strings.Contains(err.Error(), "TOKEN") || !strings.Contains(err.Error(), "others") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestEveryKeyIsRootsOrHarmless lists the keys that an agent may set in a hinit.yaml that it can write. hinit must refuse all
// other keys in such a file. For each new key, decide whether it belongs in this list.
func TestEveryKeyIsRootsOrHarmless(t *testing.T) {
	harmless := strings.Fields(`agent.checks services.checks agent.cwd agent.env agent.gateway agent.gateway_default agent.profile_create agent.profile_delete
		agent.profile_rename agent.ready agent.settle logs.console logs.mask profiles.marker shutdown.budget start.parallel
		services.command services.cwd services.enabled services.enabled_by services.env services.immediate_on services.log services.park_on services.success_codes
		services.needs services.notify.fd services.notify.protocol services.notify.timeout services.watchdog services.once services.restart_on services.schedule.cron services.schedule.jitter services.schedule.missed services.schedule.timezone
		profiles.env profiles.needs profiles.restart_on
		agent.deaf.action agent.deaf.after agent.deaf.period profiles.deaf profiles.checks
		on agent.on services.on profiles.on`)
	for _, limits := range []string{"logs.", "services.logs."} {
		for name := range strings.FieldsSeq("archives compress max_age max_size_mb min_free_mb quota_mb rate_limit") {
			harmless = append(harmless, limits+name)
		}
	}
	for _, policy := range []string{"", "services.", "profiles."} {
		for name := range strings.FieldsSeq(`restart.crash_loop_count restart.max_restarts restart.max_restarts_window restart.policy restart.crash_loop_window restart.factor restart.immediate_on restart.initial
			restart.jitter restart.max restart.park_on restart.reset_after restart.success_codes stop.grace stop.signal`) {
			harmless = append(harmless, policy+name)
		}
	}
	// The agent may set these keys too. hinit reads an env_file as the user of the service, and root's service accepts only
	// root's files.
	for _, of := range []string{"agent.", "services.", "profiles."} {
		for name := range strings.FieldsSeq("env_file memory.warn memory.restart group reload_signal stop_command") {
			harmless = append(harmless, of+name)
		}
	}
	check := func(path string, privileged bool) {
		if privileged == slices.Contains(harmless, path) {
			t.Errorf("%s: root's is %t; is it safe in the hands of the agent?", path, privileged)
		}
	}
	for _, k := range Keys[Config]() {
		check(k.Path, k.RootOnly)
	}
	for _, k := range Keys[Service]() {
		check("services."+k.Path, k.RootOnly)
	}
	for _, k := range Keys[Profile]() {
		check("profiles."+k.Path, k.RootOnly)
	}
}

func TestAFileThatTheAgentCanWriteMaySetTheRest(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root has something to lose")
	}
	path := writeFile(t, `home: /opt/data
agent: {user: hermes, gateway: [serve, "{profile}"]}
services: {x: {command: [id], user: hermes, env: {A: b}}}
restart: {initial: 2s}`)
	if err := os.Chown(path, otherUID, 0); err != nil {
		t.Fatal(err)
	}
	env := envLookup(map[string]string{"HINIT_BOOT_STRICT": "1", "HERMES_HOME": "/data"})
	c, err := Load(Options{Path: path, Env: env})
	if err != nil {
		t.Fatal(err)
	}
	if c.Services["x"].User != "hermes" || c.Home != "/data" || !c.Boot.Strict || c.Restart.InitialDelay != 2*time.Second {
		t.Errorf("got %+v", c)
	}
	if len(c.Warnings) != 1 || !strings.Contains(c.Warnings[0], path+" belongs to uid 10000; chown root") {
		t.Errorf("warnings %q", c.Warnings)
	}
	// After a re-execution, the new hinit gets the checked text from the old hinit.
	if c, err = Load(Options{Path: path, Content: []byte("home: /srv"), Env: envLookup(nil)}); err != nil || c.Home != "/srv" {
		t.Errorf("from the image before: %v", err)
	}
}
