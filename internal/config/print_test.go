package config

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestExpand(t *testing.T) {
	c := DefaultConfig()
	vars := map[string]string{"profile": "coder", "profile_home": "/p", "to": "b"}
	for in, want := range map[string]string{
		"{agent}": "/opt/hermes/.venv/bin/hermes", "{home}/x": "/opt/data/x", "a{profile}b{to}": "acoderbb", "{profile_home}": "/p",
		"": "", "plain": "plain", "${profile}": "${profile}", "$ {profile}": "$ coder", "{{profile}}": "{profile}", "{}": "{}",
		"{ profile }": "{ profile }", `{"a":{"b":1}}`: `{"a":{"b":1}}`, "{{.Names}}": "{{.Names}}", "{other}": "{other}",
		"{profile": "{profile", "profile}": "profile}", "{{profile}": "{{profile}", "{": "{", "{{": "{{", "{{profile}}}": "{profile}}", "{{{profile}}}": "{{profile}}", "{{{range .}}}{{{end}}}": "{{{range .}}}{{end}}",
		"{Profile}": "{Profile}",
	} {
		cmd := []string{in}
		if got := c.Expand(cmd, vars); got[0] != want || cmd[0] != in {
			t.Errorf("Expand(%q) = %q, want %q", in, got[0], want)
		}
	}
	if got := c.Expand([]string{"{home}"}, map[string]string{"home": "/h"})[0]; got != "/h" {
		t.Errorf("a variable of the caller does not win: %q", got)
	}
	if got := c.Expand([]string{"{profile}"}, map[string]string{"profile": "{home}"})[0]; got != "{home}" {
		t.Errorf("a value was expanded again: %q", got)
	}
}

func TestSecretsAreMasked(t *testing.T) {
	text := "agent: {env: {API_KEY: one, plain: two}}\nservices: {w: {command: [a], env: {My_Password: three, DB_PASS: five, DATABASE_URL: 'pg://u:six@h/'},\n" +
		"  checks: [{kind: alive, http: {url: 'http://127.0.0.1:1/', headers: {Authorization: eight}}}]}}\n" +
		"on: {oom: [{webhook: 'https://u:nine@hook.example/ten?token=eleven'}]}\n"
	c := mustLoadConfig(t, text, nil)
	out, err := json.Marshal(c.Effective())
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{`"one"`, `"three"`, `"five"`, "six", `"eight"`, "nine", "ten", "eleven"} {
		if strings.Contains(string(out), secret) {
			t.Errorf("the effective values show %q", secret)
		}
	}
	if !strings.Contains(string(out), `"two"`) || !strings.Contains(string(out), "@hook.example/") {
		t.Error("a value that is no secret is hidden")
	}
	changes := Diff(c, mustLoadConfig(t, strings.ReplaceAll(text, "one", "four"), nil))
	changes = slices.DeleteFunc(changes, func(key string) bool { return strings.HasPrefix(key, "services."+ActionsName) })
	if want := []string{"agent.env.API_KEY"}; !slices.Equal(changes, want) {
		t.Errorf("changes are %v, want %v", changes, want)
	}
}

func TestDiff(t *testing.T) {
	a := mustLoadConfig(t, "stop: {grace: 5s}\nservices: {w: {command: [a]}}", nil)
	b := mustLoadConfig(t, "services: {w: {command: [a, b], limits: {core: unlimited}}}\nagent: {env: {A: x}}", nil)
	want := []string{"agent.env.A", "services.dashboard.stop.grace", "services.w.command", "services.w.limits.core", "services.w.stop.grace", "stop.grace"}
	if got := Diff(a, b); !slices.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	if got := Diff(b, b); len(got) != 0 {
		t.Errorf("no difference is %v", got)
	}
	if got := Diff(b, a); !slices.Equal(got, want) {
		t.Errorf("the way back is %v", got)
	}
}

// TestRoundTrip writes the effective defaults as a file. Reading the file must give the same configuration.
func TestRoundTrip(t *testing.T) {
	tree := map[string]any{}
	hooks := make([]map[string]any, len(DefaultConfig().Boot.Hooks))
	for _, e := range DefaultConfig().Effective() {
		if rest, ok := strings.CutPrefix(e.Key, "boot.hooks."); ok {
			i, name := int(rest[0]-'0'), rest[2:]
			if hooks[i] == nil {
				hooks[i] = map[string]any{}
			}
			hooks[i][name] = e.Value
			continue
		}
		at, path := tree, strings.Split(e.Key, ".")
		for _, name := range path[:len(path)-1] {
			if at[name] == nil {
				at[name] = map[string]any{}
			}
			at = at[name].(map[string]any)
		}
		at[path[len(path)-1]] = e.Value
	}
	tree["boot"].(map[string]any)["hooks"] = hooks
	text, err := json.MarshalIndent(tree, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	c := mustLoadConfig(t, string(text), nil)
	if changes := Diff(DefaultConfig(), c); len(changes) != 0 {
		t.Errorf("changes are %v", changes)
	}
	for _, e := range c.Effective() {
		if !strings.HasPrefix(e.Origin, c.Path+":") {
			t.Errorf("origin of %s is %q", e.Key, e.Origin)
		}
	}
}

func TestEffectiveIsSortedAndOnePerKey(t *testing.T) {
	entries := mustLoadConfig(t, "services: {a: {command: [x]}, z-2: {command: [x]}}", nil).Effective()
	for i := 1; i < len(entries); i++ {
		if entries[i-1].Key >= entries[i].Key {
			t.Errorf("%q comes before %q", entries[i-1].Key, entries[i].Key)
		}
	}
}

func TestTruth(t *testing.T) {
	for word, want := range map[string][2]bool{
		"1": {true, true}, "true": {true, true}, "TRUE": {true, true}, "True": {true, true}, "yes": {true, true}, "YES": {true, true},
		"Yes": {true, true}, "tRuE": {true, false}, "yEs": {true, false}, "on": {}, "": {}, "0": {}, " 1": {}, "2": {}, "y": {},
	} {
		if got := [2]bool{IsTruthy(word), IsShellTruthy(word)}; got != want {
			t.Errorf("%q: got %v, want %v", word, got, want)
		}
	}
}

func TestFormatDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", time.Second: "1s", 90 * time.Second: "90s", 2 * time.Minute: "2m", time.Hour: "1h", 90 * time.Minute: "1h30m",
		1500 * time.Millisecond: "1.5s", time.Hour + time.Second: "1h0m1s", 10 * time.Hour: "10h", 20 * time.Minute: "20m",
	} {
		if got := formatDuration(d); got != want {
			t.Errorf("%d: got %q, want %q", d, got, want)
		}
		if back, err := time.ParseDuration(want); err != nil || back != d {
			t.Errorf("%q reads as %s (%v)", want, back, err)
		}
	}
}
