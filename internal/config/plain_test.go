package config_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"hinit/internal/config"
)

func loadServicesOnly(t *testing.T, text string, env map[string]string) (*config.Config, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "hinit.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return config.Load(config.Options{Path: path, ServicesOnly: true, Content: []byte(text), Env: func(name string) (string, bool) {
		v, ok := env[name]
		return v, ok
	}})
}

func TestAPlainSupervisorHasNothingOfTheAgent(t *testing.T) {
	t.Chdir(t.TempDir())
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	c, err := loadServicesOnly(t, "services:\n  web: {command: [sleep, \"1\"]}\n  kept: {command: [sleep, \"1\"], log: true}\n", map[string]string{
		"HERMES_HOME": "/somewhere", "HERMES_DASHBOARD": "1", "HINIT_STOP_TIMEOUT": "3",
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Services) != 2 || len(c.Boot.Hooks) != 0 || c.Agent.User != "" || c.Home != wd {
		t.Errorf("services %v, hooks %v, user %q, home %q", c.Services, c.Boot.Hooks, c.Agent.User, c.Home)
	}
	if c.Shutdown.Budget.Seconds() != 3 {
		t.Errorf("the budget is %v: hinit's own variables count", c.Shutdown.Budget)
	}
	web, kept := c.Services["web"], c.Services["kept"]
	if web.HasLogFile || !kept.HasLogFile || web.Cwd != wd || len(web.Env) != 0 || web.User != "" || len(web.Restart.ParkCodes) != 0 {
		t.Errorf("web is %+v, kept is %+v", web, kept)
	}
}

// Under hinit run, a service must count as started only after one second. Otherwise hinit start would report "is up" for a
// service that dies 0.4 s later.
func TestAStartOfAPlainSupervisorCountsAfterASecond(t *testing.T) {
	c, err := loadServicesOnly(t, "services:\n  web: {command: [sleep, \"1\"]}\n", nil)
	if err != nil || c.Agent.SettleTime != time.Second {
		t.Errorf("a start counts after %v (%v)", c.Agent.SettleTime, err)
	}
}

func TestAPlainSupervisorWithALogDirectoryKeepsAllLogs(t *testing.T) {
	c, err := loadServicesOnly(t, "logs: {dir: /var/log/mine}\nservices:\n  web: {command: [sleep, \"1\"]}\n  not: {command: [sleep, \"1\"], log: false}\n", nil)
	if err != nil {
		t.Fatal(err)
	}
	if !c.Services["web"].HasLogFile || c.Services["not"].HasLogFile || c.Logs.Dir != "/var/log/mine" {
		t.Errorf("%+v in %s", c.Services, c.Logs.Dir)
	}
}

func TestAPlainSupervisorRefusesKeysOfTheAgent(t *testing.T) {
	_, err := loadServicesOnly(t, "agent: {binary: /bin/x}\nprofiles: {marker: x}\nservices:\n  web: {command: [\"{agent}\", \"{{agent}}\"]}\n"+
		"  stopped: {command: [x], stop_command: [\"{agent}\"]}\nruns: {once: {command: [\"{agent}\"]}}\n", nil)
	if err == nil {
		t.Fatal("it takes them")
	}
	for _, want := range []string{
		"cannot set agent.binary", "cannot set profiles.marker", "cannot set services.web.command: unknown placeholder {agent}",
		"cannot set services.stopped.stop_command: unknown placeholder {agent}", "cannot set runs.once.command: unknown placeholder {agent}",
	} {
		if strings.Count(err.Error(), want) != 1 {
			t.Errorf("%q is not once in: %v", want, err)
		}
	}
}
