package isolate

import (
	"reflect"
	"slices"
	"testing"

	"hinit/internal/isolation"
)

func TestAPlanSurvivesTheWayToTheProgram(t *testing.T) {
	plan := isolation.Plan{
		Name: "coder", Home: "/data/profiles/coder", Hide: []string{"/data", "/run/hinit"}, Share: []string{"/srv/board"}, Read: []string{"/srv/a=b"},
		Ports: []int{8700}, Refused: "why", Control: true, Marked: true, Degrade: true,
	}
	argv := plan.Argv("/usr/bin/"+isolation.Program, []string{"agent", "--", "home=/"})
	got, command, err := Parse(argv)
	if err != nil || !reflect.DeepEqual(got, plan) || !slices.Equal(command, []string{"agent", "--", "home=/"}) {
		t.Errorf("%+v, %q, %v", got, command, err)
	}
	if got := isolation.Command(argv); !slices.Equal(got, command) {
		t.Errorf("the command is %q", got)
	}
	if got, command, err := Parse(isolation.Instead(argv, []string{"sh"})); err != nil || !reflect.DeepEqual(got, plan) || !slices.Equal(command, []string{"sh"}) {
		t.Errorf("%+v, %q, %v", got, command, err)
	}
}

func TestWordsThatAreNoPlanAreLeftAlone(t *testing.T) {
	for _, argv := range [][]string{{"agent", "gateway", "run"}, {"agent", "--", "x"}, {isolation.Program, "--"}, {isolation.Program, "hide", "x"}} {
		if got := isolation.Command(argv); !slices.Equal(got, argv) {
			t.Errorf("%q became %q", argv, got)
		}
	}
	for _, word := range []string{"port=70000", "port=x", "hid=/x"} {
		if _, _, err := Parse([]string{isolation.Program, word, "--", "true"}); err == nil {
			t.Errorf("%s is a plan", word)
		}
	}
}
