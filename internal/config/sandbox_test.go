package config

import (
	"os"
	"slices"
	"strings"
	"testing"

	"hinit/internal/testkit"
)

func TestSandboxIsEnabledByItsVariable(t *testing.T) {
	c, err := Load(Options{Content: []byte("{agent: {user: bot}}"), Env: envLookup(map[string]string{"HINIT_SANDBOX": "1", "HERMES_HOME": "/data", "HINIT_SANDBOX_ROOTS": "/data/projects"})})
	if err != nil {
		t.Fatal(err)
	}
	s := c.Services[SandboxName]
	if !s.Enabled || s.User != "root" || !slices.Equal(s.Command, []string{"hinit-sandbox", "serve", "--user", "bot"}) {
		t.Errorf("the service is %+v", s)
	}
	// Root's service must get no variables that lead to the agent's directories, except the variables that hinit sets for this
	// service.
	if s.Env["HERMES_HOME"] != "/data" || s.Env["HINIT_SANDBOX_ROOTS"] != "/data/projects" {
		t.Errorf("its environment is %v", s.Env)
	}
}

func TestSandboxIsOffByDefault(t *testing.T) {
	for _, vars := range []map[string]string{nil, {"HINIT_SANDBOX": ""}, {"HINIT_SANDBOX": "0"}} {
		c, err := Load(Options{Content: []byte("{}"), Env: envLookup(vars)})
		if err != nil {
			t.Fatal(err)
		}
		if c.Services[SandboxName].Enabled {
			t.Errorf("with %v it is %+v", vars, c.Services[SandboxName])
		}
	}
}

// A file that the agent can write may set no key of the sandbox service, because the service runs as root.
func TestTheAgentCannotSayWhatRootsServiceOfSandboxesRuns(t *testing.T) {
	testkit.NeedRoot(t)
	for _, keys := range []string{"{command: [/opt/data/evil]}", "{env: {LD_PRELOAD: /opt/data/evil.so}}", "{cwd: /opt/data}", "{enabled: true}", "{checks: [{exec: [id]}]}"} {
		path := writeFile(t, "services: {sandbox: "+keys+"}")
		vars := envLookup(map[string]string{"HINIT_SANDBOX": "1"})
		if _, err := Load(Options{Path: path, Env: vars}); err != nil && !strings.Contains(keys, "checks") {
			t.Errorf("%s in a file of root's: %v", keys, err)
		}
		if err := os.Chown(path, otherUID, 0); err != nil {
			t.Fatal(err)
		}
		want := "cannot set services.sandbox here: it is root's to decide, and " + path + " belongs to uid 10000"
		if _, err := Load(Options{Path: path, Env: vars}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s in a file of the agent's: %v", keys, err)
		}
	}
}
