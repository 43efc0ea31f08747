package units

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"hinit/internal/boot"
	"hinit/internal/config"
	"hinit/profiles"
	"hinit/supervisor"
)

func TestAProfileHasItsOwnPolicyNeedsAndVariables(t *testing.T) {
	text := "agent: {env: {A: all, B: all}}\nprofiles: {coder: {restart: never, needs: [dashboard], restart_on: [dashboard], env: {A: \"of {profile}\"}}}\n"
	cfg, err := config.Load(config.Options{Path: "hinit.yaml", Content: []byte(text), Env: func(string) (string, bool) { return "", false }})
	if err != nil {
		t.Fatal(err)
	}
	m := NewMaker(boot.CallerAsAgent(), "/data", nil, false)
	coder, other := m.Gateway(cfg, profiles.Profile{Name: "coder", Home: "/data/coder"}, nil), m.Gateway(cfg, profiles.Profile{Name: "other", Home: "/data/other"}, nil)
	want := supervisor.RestartAndNeeds{
		RestartPolicy: supervisor.RestartNever, RestartsWindow: other.Policy.RestartsWindow,
		Needs: []supervisor.Need{{Name: "dashboard", Until: supervisor.UntilReady}}, RestartOn: []string{"dashboard"}, LimitedStarts: true,
	}
	if !reflect.DeepEqual(coder.Policy.RestartAndNeeds, want) {
		t.Errorf("coder: %+v", coder.Policy.RestartAndNeeds)
	}
	if other.Policy.RestartPolicy != supervisor.RestartAlways || other.Policy.Needs != nil {
		t.Errorf("other: %+v", other.Policy.RestartAndNeeds)
	}
	for _, v := range []string{"A=of coder", "B=all"} {
		if !slices.Contains(coder.Spec.Env, v) {
			t.Errorf("coder has not %s in %s", v, strings.Join(coder.Spec.Env, " "))
		}
	}
	if !slices.Contains(other.Spec.Env, "A=all") {
		t.Errorf("other: %s", strings.Join(other.Spec.Env, " "))
	}
}

func TestGatewaysShareAnEnvironment(t *testing.T) {
	cfg, err := config.Load(config.Options{
		Path: "hinit.yaml", Content: []byte("profiles: {own: {env: {A: \"of {profile}\"}}}\n"), Env: func(string) (string, bool) { return "", false },
	})
	if err != nil {
		t.Fatal(err)
	}
	m := NewMaker(boot.CallerAsAgent(), "/data", []string{"PATH=/bin"}, false)
	env := func(name string, exports map[string]string) []string {
		return m.Gateway(cfg, profiles.Profile{Name: name, Home: "/data/" + name}, exports).Spec.Env
	}
	one, two := env("one", nil), env("two", nil)
	if &one[0] != &two[0] {
		t.Error("two gateways with the same variables have a copy each")
	}
	for name, exports := range map[string]map[string]string{"own": nil, "three": {"B": "exported"}} {
		if other := env(name, exports); len(other) != len(one)+1 {
			t.Errorf("%s: %q", name, other)
		}
	}
	if again := env("one", nil); !slices.Equal(again, one) {
		t.Errorf("%q, was %q", again, one)
	}
}
