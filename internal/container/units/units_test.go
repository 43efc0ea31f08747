package units_test

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"hinit/client"
	"hinit/internal/account"
	"hinit/internal/boot"
	"hinit/internal/config"
	"hinit/internal/container/units"
	"hinit/internal/proc"
	"hinit/profiles"
)

const agentUID = 10000

// newTestMaker returns a Maker for an agent with a volume, the configuration in yaml, and the home. The environment contains
// several variables that lead to the agent's files.
func newTestMaker(t *testing.T, yaml string) (*units.Maker, *config.Config, string) {
	t.Helper()
	home := t.TempDir()
	file := filepath.Join(t.TempDir(), "hinit.yaml")
	if err := os.WriteFile(file, []byte("home: "+home+"\n"+yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(config.Options{Path: file, Env: func(string) (string, bool) { return "", false }})
	if err != nil {
		t.Fatal(err)
	}
	agent := boot.NewAgent(account.User{Name: "hermes", UID: agentUID, GID: agentUID, Home: home}, true)
	env := []string{"PATH=" + home + "/bin:/usr/bin:/bin", "PYTHONPATH=" + home + "/lib", "LANG=C", "HOME=/nowhere", "HINIT_CONFIG=" + home + "/hinit.yaml"}
	return units.NewMaker(agent, home, env, false), cfg, home
}

func asRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can run as root")
	}
}

func envValue(env []string, name string) string { return proc.Getenv(env, name) }

func TestAGatewayIsWhatTheConfigurationSays(t *testing.T) {
	m, cfg, home := newTestMaker(t, `
agent:
  gateway: [agent, -p, "{profile}", run]
  gateway_default: [agent, run]
  cwd: "{profile_home}"
  env: {HOME: /opt/data, WHO: "{profile}"}
restart: {initial: 3s, jitter: 0.25, park_on: [78]}
`)
	p := profiles.Profile{Name: "coder", Home: home + "/profiles/coder"}
	u := m.Gateway(cfg, p, map[string]string{"WHO": "somebody else", "SLOT": "1"})
	if u.Name != "gateway-coder" || u.Profile != "coder" || !slices.Equal(u.Spec.Argv, []string{"agent", "-p", "coder", "run"}) || u.Spec.Dir != p.Home {
		t.Errorf("it is %+v", u)
	}
	if u.LogFile != cfg.Logs.Dir+"/coder/current" {
		t.Errorf("its log is %q", u.LogFile)
	}
	if b := u.Policy.Backoff; b.Initial != 3*time.Second || b.Jitter != 0.25 || !slices.Equal(u.Policy.ParkCodes, []int{78}) {
		t.Errorf("its policy is %+v", u.Policy)
	}
	for name, want := range map[string]string{"WHO": "coder", "SLOT": "1", "HOME": "/opt/data", "LANG": "C"} {
		if got := envValue(u.Spec.Env, name); got != want {
			t.Errorf("%s is %q, not %q", name, got, want)
		}
	}
	if u := m.Gateway(cfg, profiles.Profile{Name: profiles.Default, Home: home}, nil); !slices.Equal(u.Spec.Argv, []string{"agent", "run"}) {
		t.Errorf("the default gateway is %q", u.Spec.Argv)
	}
	m.SetHome("/home/found")
	if got := envValue(m.Gateway(cfg, p, nil).Spec.Env, "HOME"); got != "/home/found" {
		t.Errorf("HOME is %q, not what the boot has found", got)
	}
}

// Root's service must get no variable, working directory or PATH entry of the agent. Root would run the agent's programs.
func TestWhatRunsAsRootTrustsNothingOfTheAgents(t *testing.T) {
	asRoot(t)
	m, cfg, home := newTestMaker(t, `
services:
  job: {command: [job], user: root, cwd: "{home}", env: {MINE: "{home}/x"}}
`)
	service, err := m.Service(cfg, cfg.Services["job"])
	if err != nil {
		t.Fatal(err)
	}
	hook, err := m.Hook(cfg, boot.Hook{Name: "h", Number: 3, Command: []string{"h"}, User: "root"})
	if err != nil {
		t.Fatal(err)
	}
	foreign := m.ForeignServiceSpec(cfg, true).Env
	for name, env := range map[string][]string{"a service": service.Spec.Env, "a hook": hook.Spec.Env, "a service directory": foreign} {
		if got := envValue(env, "PATH"); strings.Contains(got, home) || !strings.Contains(got, "/usr/bin") {
			t.Errorf("%s has PATH %q", name, got)
		}
		if got := envValue(env, "PYTHONPATH"); got != "" {
			t.Errorf("%s has PYTHONPATH %q", name, got)
		}
		// without the variable, a program would assume that no profile is isolated
		if got := envValue(env, "HINIT_CONFIG"); got != home+"/hinit.yaml" {
			t.Errorf("%s has HINIT_CONFIG %q", name, got)
		}
		if got := envValue(env, "HOME"); strings.HasPrefix(got, home) || got == "" || got == "/nowhere" {
			t.Errorf("%s has HOME %q", name, got)
		}
	}
	if service.Spec.Dir != "/" || hook.Spec.Dir != "/" || hook.Name != "hook-3" || service.Spec.Cred != nil {
		t.Errorf("they are %+v and %+v", service, hook)
	}
	if got := envValue(service.Spec.Env, "MINE"); got != home+"/x" {
		t.Errorf("what hinit.yaml sets itself is %q", got)
	}
	if got := m.ServiceVars(cfg, cfg.Services["job"])["HOME"]; got != envValue(service.Spec.Env, "HOME") {
		t.Errorf("its script would run with HOME %q, it runs with %q", got, envValue(service.Spec.Env, "HOME"))
	}
}

func TestWhatRunsAsTheAgentHasItsEnvironment(t *testing.T) {
	asRoot(t)
	m, cfg, home := newTestMaker(t, `
services:
  web: {command: [web], cwd: "{home}"}
`)
	web, err := m.Service(cfg, cfg.Services["web"])
	if err != nil {
		t.Fatal(err)
	}
	hook, err := m.Hook(cfg, boot.Hook{Name: "h", Command: []string{"h"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, spec := range []proc.Spec{web.Spec, hook.Spec} {
		if spec.Cred == nil || spec.Cred.UID != agentUID || envValue(spec.Env, "PYTHONPATH") != home+"/lib" {
			t.Errorf("%q runs as %+v with %q", spec.Argv, spec.Cred, spec.Env)
		}
	}
	if web.Spec.Dir != home {
		t.Errorf("it starts in %q", web.Spec.Dir)
	}
}

// Only the agent's own programs must get the variables of the agent's virtual environment, as the scripts of the image set
// them.
func TestAVirtualEnvironmentIsActivated(t *testing.T) {
	m, cfg, _ := newTestMaker(t, "services: {web: {command: [web]}}\n")
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "pyvenv.cfg"), []byte("home = /usr\nprompt = 'agent'\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg.Agent.Binary = root + "/bin/agent"
	m.SetEnv(append(m.Env(), "PYTHONHOME=/elsewhere"))
	web, err := m.Service(cfg, cfg.Services["web"])
	if err != nil {
		t.Fatal(err)
	}
	gateway := m.Gateway(cfg, profiles.Profile{Name: "coder"}, nil)
	cmd := m.Cmd(cfg, &boot.RunPlan{Argv: []string{"agent"}}, true)
	for name, env := range map[string][]string{"a gateway": gateway.Spec.Env, "the CMD": cmd.Spec.Env} {
		if envValue(env, "VIRTUAL_ENV") != root || envValue(env, "VIRTUAL_ENV_PROMPT") != "agent" || !strings.HasPrefix(envValue(env, "PATH"), root+"/bin:") || envValue(env, "PYTHONHOME") != "" {
			t.Errorf("%s has %q", name, env)
		}
	}
	if envValue(web.Spec.Env, "VIRTUAL_ENV") != "" || envValue(web.Spec.Env, "PYTHONHOME") == "" {
		t.Errorf("a service has %q", web.Spec.Env)
	}
	if !cmd.Spec.ForegroundTTY || !cmd.Policy.IsCMD || cmd.Name != units.CmdName || cmd.Policy.Grace != cfg.Shutdown.Budget {
		t.Errorf("the CMD is %+v", cmd)
	}
}

func TestAnUnknownUserIsNoService(t *testing.T) {
	asRoot(t)
	m, cfg, _ := newTestMaker(t, "services: {web: {command: [web]}}\n")
	s := cfg.Services["web"]
	s.User = "nobody-has-this-name"
	if _, err := m.Service(cfg, s); err == nil || !strings.Contains(err.Error(), "nobody-has-this-name") {
		t.Errorf("got %v", err)
	}
}

// If a service runs as root, all programs of the agent must get no_new_privs, and root's service must not.
func TestSudoGainsTheAgentNothingWhereAServiceIsRoots(t *testing.T) {
	asRoot(t)
	for _, sealed := range []bool{true, false} {
		key := ""
		if !sealed {
			key = "agent: {no_new_privs: false}\n"
		}
		m, cfg, home := newTestMaker(t, key+"services:\n  roots: {command: [job], user: root}\n  mine: {command: [job]}\n  open: {command: [job], no_new_privs: false}\n")
		got := map[string]bool{}
		for _, name := range []string{"roots", "mine", "open"} {
			u, err := m.Service(cfg, cfg.Services[name])
			if err != nil {
				t.Fatal(err)
			}
			got[name] = u.Spec.Setup.NoNewPrivs
		}
		hook, err := m.Hook(cfg, boot.Hook{Name: "h", Command: []string{"h"}})
		if err != nil {
			t.Fatal(err)
		}
		run := m.RunSpec(cfg, config.Run{Command: []string{"r"}}, client.RunRequest{}, home)
		got["gateway"] = m.Gateway(cfg, profiles.Profile{Name: "p", Home: home}, nil).Spec.Setup.NoNewPrivs
		got["cmd"] = m.Cmd(cfg, &boot.RunPlan{Path: "/bin/true", Argv: []string{"true"}}, false).Spec.Setup.NoNewPrivs
		got["hook"], got["run"] = hook.Spec.Setup.NoNewPrivs, run.Setup.NoNewPrivs
		got["slot"], got["root's slot"] = m.ForeignServiceSpec(cfg, false).Setup.NoNewPrivs, m.ForeignServiceSpec(cfg, true).Setup.NoNewPrivs
		want := map[string]bool{
			"roots": false, "mine": sealed, "open": false, "gateway": sealed, "cmd": sealed, "hook": sealed, "run": sealed, "slot": sealed, "root's slot": false,
		}
		if !maps.Equal(got, want) {
			t.Errorf("sealed are %v, not %v", got, want)
		}
	}
}

// Exports of a slot's run script must not reach the gateway of a profile with its own user, because the agent's user can write
// the script.
func TestASlotChoosesNoEnvironmentOfATenant(t *testing.T) {
	m, cfg, home := newTestMaker(t, "profiles: {own: {isolation: user}}\n")
	exports := map[string]string{"BASH_ENV": "/planted"}
	for name, want := range map[string]bool{"p": true, "own": false} {
		env := m.Gateway(cfg, profiles.Profile{Name: name, Home: home}, exports).Spec.Env
		if got := slices.Contains(env, "BASH_ENV=/planted"); got != want {
			t.Errorf("%s: the variable is set: %v", name, got)
		}
	}
}
