package config

import (
	"slices"
	"strings"
	"testing"
)

func isolated(t *testing.T, text string) (*Config, error) {
	t.Helper()
	return Load(Options{Path: "hinit.yaml", Text: []byte(text), Env: func(string) (string, bool) { return "", false }})
}

func TestAProfileFollowsTheIsolationOfAllButTheRootProfileHasNone(t *testing.T) {
	cfg, err := isolated(t, "isolation: {mode: user, share: [/srv/board], uids: 30000-39999}\nprofiles: {coder: {isolation: files}, plain: {isolation: {mode: none, control: true}}}\n")
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"coder": IsolationFiles, "plain": IsolationNone, "other": IsolationUser, "default": IsolationNone} {
		if got := cfg.IsolationOf(name); got.Mode != want || !slices.Equal(got.Share, Paths{"/srv/board"}) {
			t.Errorf("%s: %+v, want the mode %s", name, got, want)
		}
	}
	if got := cfg.UIDRange(); got != (UIDs{30000, 39999}) || got.Size() != 10000 || got.Has(29999) || !got.Has(39999) {
		t.Errorf("the range is %+v", got)
	}
	if !cfg.Isolated(IsolationFiles) || !cfg.Isolated(IsolationUser) {
		t.Error("it says that nothing is isolated")
	}
}

func TestWrongIsolationIsRefusedInWords(t *testing.T) {
	for text, want := range map[string]string{
		"isolation: usr":                             `cannot set isolation.mode: expected one of none, files, user`,
		"isolation: {uids: 20000}":                   `expected a range of uids such as 20000-29999, got "20000"`,
		"isolation: {uids: 29999-20000}":             `ends before it begins; write 20000-29999`,
		"isolation: {uids: 0-100}":                   `uids below 1000 belong to the system`,
		"isolation: {mode: user, uids: 20000-20009}": `has 10 uids, and there may be 2000 profiles (profiles.max)`,
		"isolation: {uids: 20000-20000}\nprofiles: {a: {isolation: user}, b: {isolation: user}}": `has 1 uids for 2 profiles`,
		"isolation: user\nagent: {user: \"20001\"}":                                              `has the agent's own uid 20001 in it`,
		"isolation: {share: [/]}":                                                                `"/" shares everything`,
		"isolation: {share: [data]}":                                                             `cannot set isolation.share`,
		"isolation: {share: [\"{home}\"]}":                                                       `cannot share /opt/data by isolation.share: /opt/data/profiles is in it`,
		"isolation: {share: [/run/hinit:ro]}":                                                    `cannot share /run/hinit by isolation.share`,
		"profiles: {a: {isolation: {share: [\"{home}/profiles\"]}}}":                             `cannot share /opt/data/profiles by profiles.a.isolation.share`,
		"isolation: {ports: [0]}":                                                                `a port is from 1 to 65535, got 0`,
		"profiles: {default: {isolation: user}}":                                                 `cannot isolate the root profile`,
		"profiles: {a: {isolation: {uids: 1-2}}}":                                                `unknown key "profiles.a.isolation.uids"`,
	} {
		if _, err := isolated(t, text+"\n"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\ngot  %v\nwant %s", text, err, want)
		}
	}
}
