package config

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"hinit/client"
)

func entryTexts(entries []client.ConfigEntry) (list []string) {
	for _, e := range entries {
		_, line, _ := strings.Cut(e.Origin, "hinit.yaml")
		list = append(list, fmt.Sprintf("%s=%v%s", e.Key, e.Value, line))
	}
	return list
}

func TestOnlyWhatDiffersFromTheDefaultsIsInForce(t *testing.T) {
	c, err := Load(Options{Path: "/x/hinit.yaml", Content: []byte(`agent: {nice: 4}
restart: {max: 5m}
profiles: {own: {nice: 5, needs: [db]}, marker: SOUL.md}
services:
  db: {command: [x], user: "7", limits: {nofile: "5:6"}, notify: systemd, watchdog: 30s, umask: "027", restart: on-failure, memory: {warn: 1GiB}, env: {A: b}}
  plain: {command: [x]}
`), Env: envLookup(nil)})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"db":    "limits.nofile=5:6:5 memory.warn=1GiB:5 notify.protocol=systemd:5 restart.max=5m:2 restart.policy=on-failure:5 umask=027:5 user=7:5 watchdog=30s:5",
		"plain": "restart.max=5m:2",
		"none":  "",
	} {
		if got := strings.Join(entryTexts(c.NonDefaultSettings(name)), " "); got != want {
			t.Errorf("%s:\n got %s\nwant %s", name, got, want)
		}
	}
	for name, want := range map[string]string{
		"own":   "needs=[db]:3 nice=5:3 restart.max=5m:2",
		"other": "nice=4:1 restart.max=5m:2",
	} {
		if got := strings.Join(entryTexts(c.NonDefaultSettings("gateway-"+name)), " "); got != want {
			t.Errorf("profile %s:\n got %s\nwant %s", name, got, want)
		}
	}
	for _, c := range []*Config{DefaultConfig(), {servicesOnly: true, Restart: servicesOnlyDefaults().Restart, Services: map[string]Service{"s": NewService(servicesOnlyDefaults(), "s")}}} {
		for name := range c.Services {
			if got := entryTexts(c.NonDefaultSettings(name)); len(got) > 0 {
				t.Errorf("%s of the defaults: %q", name, got)
			}
		}
	}
	if got := entryTexts(DefaultConfig().NonDefaultSettings("gateway-x")); !slices.Equal(got, nil) {
		t.Errorf("a profile of the defaults: %q", got)
	}
}
