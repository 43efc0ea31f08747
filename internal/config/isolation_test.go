package config

import (
	"slices"
	"strings"
	"testing"
)

func loadText(t *testing.T, text string) (*Config, error) {
	t.Helper()
	return Load(Options{Path: "hinit.yaml", Content: []byte(text), Env: func(string) (string, bool) { return "", false }})
}

func TestAProfileFollowsTheIsolationOfAllButTheRootProfileHasNone(t *testing.T) {
	cfg, err := loadText(t, "isolation: {mode: user, share: [/srv/board], uids: 30000-39999}\nprofiles: {coder: {isolation: files}, plain: {isolation: {mode: none, control: true}}}\n")
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"coder": IsolationFiles, "plain": IsolationNone, "other": IsolationUser, "default": IsolationNone} {
		if got := cfg.IsolationOf(name); got.Mode != want || !slices.Equal(got.SharedPaths, Paths{"/srv/board"}) {
			t.Errorf("%s: %+v, want the mode %s", name, got, want)
		}
	}
	if got := cfg.UIDRange(); got != (UIDs{30000, 39999}) || got.Size() != 10000 || got.Contains(29999) || !got.Contains(39999) {
		t.Errorf("the range is %+v", got)
	}
	if !cfg.AnyMode(IsolationFiles) || !cfg.AnyMode(IsolationUser) {
		t.Error("it says that nothing is isolated")
	}
}

func TestWrongIsolationIsRefusedInWords(t *testing.T) {
	for text, want := range map[string]string{
		"isolation: usr":                             `cannot set isolation.mode: expected one of none, files, user`,
		"isolation: {uids: 20000}":                   `expected a range of uids such as 20000-29999, got "20000"`,
		"isolation: {uids: 29999-20000}":             `ends before it begins; write 20000-29999`,
		"isolation: {uids: 0-100}":                   `uids below 1000 belong to the system`,
		"isolation: {mode: user, uids: 20000-20009}": `has a group and 9 uids, and there may be 2000 profiles (profiles.max)`,
		"isolation: {mode: user, uids: 20000-21999}": `has a group and 1999 uids, and there may be 2000 profiles (profiles.max)`,
		"isolation: user\nprofiles: {max: 10000}":    `has a group and 9999 uids, and there may be 10000 profiles (profiles.max)`,
		"isolation: {uids: 20000-20000}\nprofiles: {a: {isolation: user}, b: {isolation: user}}": `has a group and 0 uids for 2 profiles`,
		"isolation: {uids: 20000-20001}\nprofiles: {a: {isolation: user}, b: {isolation: user}}": `has a group and 1 uids for 2 profiles`,
		"isolation: user\nagent: {user: \"20001\"}":                                              `cannot use isolation.uids: 20000-29999 has 20001 of agent.user in it; choose another range`,
		"isolation: user\nagent: {user: \"10000:20000\"}":                                        `has 20000 of agent.user in it`,
		"isolation: user\nservices: {web: {command: [x], user: \"20005\"}}":                      `has 20005 of services.web.user in it`,
		"isolation: user\nservices: {web: {command: [x], user: \"33:29999\"}}":                   `has 29999 of services.web.user in it`,
		"isolation: {share: [/]}":                                    `"/" shares everything`,
		"isolation: {share: [data]}":                                 `cannot set isolation.share`,
		"isolation: {share: [\"{home}\"]}":                           `cannot share /opt/data by isolation.share: /opt/data/profiles is in it`,
		"isolation: {share: [/run/hinit:ro]}":                        `cannot share /run/hinit by isolation.share`,
		"profiles: {a: {isolation: {share: [\"{home}/profiles\"]}}}": `cannot share /opt/data/profiles by profiles.a.isolation.share`,
		"isolation: {share: [\"{profile_home}/..\"]}":                `cannot share /opt/data/profiles by isolation.share: /opt/data/profiles is in it`,
		"isolation: {ports: [0]}":                                    `a port is from 1 to 65535, got 0`,
		"profiles: {default: {isolation: user}}":                     `cannot isolate the root profile`,
		"profiles: {a: {isolation: {uids: 1-2}}}":                    `unknown key "profiles.a.isolation.uids"`,
	} {
		if _, err := loadText(t, text+"\n"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\ngot  %v\nwant %s", text, err, want)
		}
	}
}

// A range with just enough ids for all profiles must be accepted. One id of the range is the common group. If a range is one id
// too small, the last profile has no user.
func TestARangeThatIsJustLargeEnoughIsAccepted(t *testing.T) {
	for _, text := range []string{
		"isolation: {mode: user, uids: 20000-22000}", "isolation: {uids: 20000-20002}\nprofiles: {a: {isolation: user}, b: {isolation: user}}",
		"isolation: user\nagent: {user: \"19999:30000\"}\nservices: {web: {command: [x], user: www-data}}",
		"agent: {user: \"20001\"}", "services: {web: {command: [x], user: \"20001\"}}",
	} {
		if _, err := loadText(t, text+"\n"); err != nil {
			t.Errorf("%s\n%v", text, err)
		}
	}
}
