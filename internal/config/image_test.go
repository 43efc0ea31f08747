package config

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// Facts of a newer agent image apply to gateways and the dashboard, unless the file or the environment sets something else.
func TestTheImageDecidesWhatNothingElseDoes(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"facts": "version 0.99.0\nstamp abc -\nsubcommands chat mcp\ngateway_parks 0 78\ndashboard_host 127.0.0.1\ndashboard_insecure no\n" +
			"stage2_fails 2\n\nunheard of\nsubcommand\n",
		"beyond": "stage2-hook.sh: cp a b\n02: true\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	load := func(text string, env map[string]string) *Config {
		t.Helper()
		c, err := Load(Options{Content: []byte(text), Env: envLookup(env), ImageDir: dir})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	c := load("services: {own: {command: [x]}}\nprofiles: {coder: {env: {A: b}}}", map[string]string{"HERMES_DASHBOARD": "1", "HERMES_DASHBOARD_INSECURE": "1"})
	want := Image{
		Version: "0.99.0", BuildStamp: "abc", Subcommands: []string{"chat", "mcp"}, GatewayParkCodes: []int{0, 78}, DashboardHost: "127.0.0.1", DashboardLacksInsecure: true,
		FailedStepEffect: "2", UnknownCommands: []string{"stage2-hook.sh: cp a b", "02: true"},
	}
	if !reflect.DeepEqual(c.Image, want) {
		t.Errorf("image %+v", c.Image)
	}
	for name, got := range map[string][]int{"all": c.Restart.ParkCodes, "default": c.ProfileOf("default").Restart.ParkCodes, "coder": c.ProfileOf("coder").Restart.ParkCodes} {
		if !slices.Equal(got, []int{0, 78}) {
			t.Errorf("gateway of %s: %v", name, got)
		}
	}
	for name, s := range c.Services {
		if !slices.Equal(s.Restart.ParkCodes, []int{78}) {
			t.Errorf("service %s: %v", name, s.Restart.ParkCodes)
		}
	}
	words := strings.Join(c.Services[DashboardName].Command, " ")
	if !strings.Contains(words, "--host 127.0.0.1 ") || strings.Contains(words, "--insecure") || !strings.Contains(strings.Join(c.Warnings, "\n"), "HERMES_DASHBOARD_INSECURE has no effect") {
		t.Errorf("dashboard %q, warnings %q", words, c.Warnings)
	}

	c = load("restart: {park_on: [3]}", map[string]string{"HERMES_DASHBOARD_HOST": "0.0.0.0", "S6_BEHAVIOUR_IF_STAGE2_FAILS": "0", "HINIT_BOOT": "image"})
	if !slices.Equal(c.Restart.ParkCodes, []int{3}) || c.Image.FailedStepEffect != "0" || len(c.Boot.Hooks) != 0 || !strings.Contains(strings.Join(c.Services[DashboardName].Command, " "), "--host 0.0.0.0 ") {
		t.Errorf("%+v, stage 2 %q, hooks %v, dashboard %q", c.Restart, c.Image.FailedStepEffect, c.Boot.Hooks, c.Services[DashboardName].Command)
	}
}
