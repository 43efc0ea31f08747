package units

import (
	"slices"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/internal/boot"
	"hinit/internal/config"
	"hinit/internal/isolation"
	"hinit/internal/proc"
	"hinit/profiles"
)

// isolationPlan returns the arguments of hinit-isolate for a profile, its command and its directory. The arguments are empty if
// the profile is not isolated.
func isolationPlan(t *testing.T, yaml, profile string) (words, command []string, dir string) {
	t.Helper()
	cfg, err := config.Load(config.Options{Path: "/etc/hinit/hinit.yaml", Content: []byte(yaml), Env: func(string) (string, bool) { return "", false }})
	if err != nil {
		t.Fatal(err)
	}
	m := NewMaker(boot.CallerAsAgent(), cfg.Home, nil, false)
	u := m.Gateway(cfg, profiles.Profile{Name: profile, Home: cfg.Home + "/profiles/" + profile}, nil)
	end := isolation.WrapperLen(u.Spec.Argv)
	return u.Spec.Argv[:end], u.Spec.Argv[end:], u.Spec.Dir
}

func TestAnIsolatedGatewayIsToldWhatItMayReach(t *testing.T) {
	words, command, dir := isolationPlan(t, "isolation: {mode: files, share: [\"/srv/{profile}\", \"/srv/all:ro\"], ports: [8700]}\n", "coder")
	for _, word := range []string{
		"name=coder", "home=/opt/data/profiles/coder", "share=/srv/coder", "read=/srv/all", "port=8700", "hide=/opt/data", "hide=/run/hinit", "hide=/etc/hinit/hinit.yaml",
	} {
		if !slices.Contains(words, word) {
			t.Errorf("%s is missing: %q", word, words)
		}
	}
	if len(command) == 0 || !strings.HasSuffix(command[0], "hermes") || dir != "/opt/data/profiles/coder" {
		t.Errorf("%q in %s", command, dir)
	}
	if words, _, _ := isolationPlan(t, "isolation: files\n", "default"); len(words) > 0 {
		t.Error("the root profile is isolated")
	}
}

// The specs of gateways must share the memory of their common environment.
func TestPID1KeptACopyOfTheEnvironmentForEachIsolatedProfile(t *testing.T) {
	cfg, err := config.Load(config.Options{Path: "/etc/hinit/hinit.yaml", Content: []byte("isolation: files\nprofiles: {own: {env: {HOME: /srv/own}}}\n"), Env: func(string) (string, bool) { return "", false }})
	if err != nil {
		t.Fatal(err)
	}
	m := NewMaker(boot.CallerAsAgent(), cfg.Home, []string{"PATH=/usr/bin:/bin", "HOME=/root"}, false)
	var specs []proc.Spec
	for _, name := range []string{"a", "b", "own"} {
		spec := m.Gateway(cfg, profiles.Profile{Name: name, Home: cfg.Home + "/profiles/" + name}, nil).Spec
		home := map[bool]string{true: "HOME=/srv/own", false: "HOME=" + cfg.Home + "/profiles/" + name}[name == "own"]
		if !slices.Contains(spec.Argv[:isolation.WrapperLen(spec.Argv)], home) {
			t.Errorf("%s gets another HOME than %s: %q", name, home, spec.Argv)
		}
		specs = append(specs, spec)
	}
	for _, spec := range specs[1:] {
		if &spec.Env[0] != &specs[0].Env[0] {
			t.Errorf("a copy of the environment: %q", spec.Env)
		}
		for i, word := range specs[0].Argv {
			if strings.HasPrefix(word, "hide=") && unsafe.StringData(word) != unsafe.StringData(spec.Argv[i]) {
				t.Errorf("a copy of %s", word)
			}
		}
	}
}

func TestWithoutRootAUserOfItsOwnIsRefusedInWords(t *testing.T) {
	if words, _, _ := isolationPlan(t, "isolation: user\n", "coder"); !strings.Contains(strings.Join(words, " "), "refused=isolation: user needs root to change users; start the container without --user") {
		t.Errorf("%q", words)
	}
}

// A worker of the task board must get the limits of its profile, as the gateway does, and a HOME that it can see. The data
// directory is hidden from a tenant.
func TestAWorkerOfTheBoardHadNoLimitsOfItsProfile(t *testing.T) {
	const yaml = `
isolation: files
agent: {pids: {max: 50}, memory: {max: 1GiB}, limits: {nofile: 77, core: 0}, nice: 5, env: {WHO: "{profile}"}}
runs: {kanban-worker: {limits: {core: 9}, env: {WHO: worker}}}
`
	cfg, err := config.Load(config.Options{Path: "/etc/hinit/hinit.yaml", Content: []byte(yaml), Env: func(string) (string, bool) { return "", false }})
	if err != nil {
		t.Fatal(err)
	}
	m, home := NewMaker(boot.CallerAsAgent(), cfg.Home, []string{"WHO=container"}, false), cfg.Home+"/profiles/coder"
	m.cgroups.Store(&proc.Cgroups{})
	ask := client.RunRequest{Profile: "coder", Task: "t_1", Env: map[string]string{"HERMES_KANBAN_TASK": "t_1"}}
	worker, gateway := m.RunSpec(cfg, cfg.Runs["kanban-worker"], ask, home), m.Gateway(cfg, profiles.Profile{Name: "coder", Home: home}, nil).Spec
	if words := worker.Argv[:isolation.WrapperLen(worker.Argv)]; !slices.Contains(words, "HOME="+home) || slices.Contains(words, "HOME="+cfg.Home) {
		t.Errorf("the worker's home is not %s: %q", home, words)
	}
	if want := []proc.Limit{{Resource: unix.RLIMIT_CORE, Soft: 9, Hard: 9}, {Resource: unix.RLIMIT_NOFILE, Soft: 77, Hard: 77}}; !slices.Equal(worker.Limits, want) {
		t.Errorf("its limits are %v, not %v", worker.Limits, want)
	}
	if worker.Setup.Cgroup == "" || worker.Setup.Cgroup != gateway.Setup.Cgroup || worker.Setup.Nice != 5 {
		t.Errorf("it starts in the control group %q, not %q, with %+v", worker.Setup.Cgroup, gateway.Setup.Cgroup, worker.Setup)
	}
	for _, kv := range []string{"HERMES_HOME=" + home, "HERMES_KANBAN_TASK=t_1", "WHO=worker"} {
		if !slices.Contains(worker.Env, kv) {
			t.Errorf("%s is missing: %q", kv, worker.Env)
		}
	}
	if alone := m.RunSpec(cfg, config.Run{Command: []string{"r"}}, client.RunRequest{}, ""); len(alone.Limits) > 0 || alone.Setup.Cgroup != "" {
		t.Errorf("a command without a profile has limits: %+v", alone)
	}
}

// The PATH of a profile with its own user must not contain directories of the agent. On a kernel without Landlock
// (isolation.missing: degrade), its gateway could otherwise run a program that the agent has put there.
func TestATenantRanToolsThatTheAgentHadPutIntoItsPath(t *testing.T) {
	yaml := "isolation: {mode: none, missing: degrade, uids: 20000-29999}\nprofiles: {coder: {isolation: user}}\n"
	cfg, err := config.Load(config.Options{Path: "/etc/hinit/hinit.yaml", Content: []byte(yaml), Env: func(string) (string, bool) { return "", false }})
	if err != nil {
		t.Fatal(err)
	}
	m := NewMaker(boot.CallerAsAgent(), cfg.Home, []string{"PATH=/opt/hermes/bin:/opt/data/tools:/opt/data/profiles/coder/bin:/opt/data/.local/bin:/usr/bin"}, false)
	for profile, want := range map[string]string{
		"coder":  "/opt/hermes/bin:/opt/data/profiles/coder/bin:/usr/bin",
		"writer": "/opt/hermes/bin:/opt/data/tools:/opt/data/profiles/coder/bin:/opt/data/.local/bin:/usr/bin",
	} {
		u := m.Gateway(cfg, profiles.Profile{Name: profile, Home: cfg.Home + "/profiles/" + profile}, nil)
		if got := proc.Getenv(u.Spec.Env, "PATH"); !strings.HasSuffix(got, want) {
			t.Errorf("the PATH of %s is %q, want %q", profile, got, want)
		}
	}
}
