package personality

import (
	"os/exec"
	"strings"
	"testing"

	"hinit/internal/proc"
	"hinit/internal/registry"
)

func TestThePathHasWhatS6PutsBeforeIt(t *testing.T) {
	for path, want := range map[string]string{
		"/opt/bin:/usr/bin:/bin": "/command:/opt/bin:/usr/bin:/bin",
		"/opt/bin":               "/command:/usr/bin:/bin:/opt/bin",
		"":                       "/command:/usr/bin:/bin",
		"/command:/bin:/usr/bin": "/command:/bin:/usr/bin",
	} {
		if got := withS6Commands(path); got != want {
			t.Errorf("PATH %q becomes %q, want %q", path, got, want)
		}
	}
}

func TestTheScriptOfASlotRunsTheCommandAsItIs(t *testing.T) {
	nasty := `it's "$HOME" \ *` + "\n" + `second`
	text := shellScript(nil, map[string]string{"GREETING": nasty}, "/", []string{"printf", `%s|%s|%s`, "-n", nasty, `$(echo no)`}, "comment")
	if !strings.HasPrefix(text, "#!") {
		t.Errorf("the script begins with %q", strings.SplitN(text, "\n", 2)[0])
	}
	out, err := exec.Command("sh", "-c", text+"\n").CombinedOutput()
	if want := "-n|" + nasty + "|$(echo no)"; err != nil || string(out) != want {
		t.Errorf("it prints %q, %v; want %q", out, err, want)
	}
	root := shellScript(&proc.Cred{UID: 10000, GID: 10001}, nil, "", []string{"true"}, "comment")
	if want := "/command/s6-setuidgid 10000:10001 'true'"; !strings.Contains(root, want) {
		t.Errorf("as root it does not drop with %s:\n%s", want, root)
	}
}

// Only root could read hinit.yaml, but the agent read the variables of root's services and of other profiles in their run
// scripts.
func TestTheAgentReadNoVariablesOfOtherUsersInRunScripts(t *testing.T) {
	agent := &proc.Cred{UID: 10000, GID: 10000, Groups: []uint32{10000}}
	for _, tt := range []struct {
		agent, service *proc.Cred
		shown          bool
	}{
		{agent, &proc.Cred{UID: 10000, GID: 10000, Groups: []uint32{10000}}, true},
		{agent, &proc.Cred{UID: 20001, GID: 20001, Groups: []uint32{20001}}, false},
		{agent, nil, false}, // the service runs as root
		{nil, nil, true},
	} {
		s := &S6{cred: tt.agent}
		run := s.slotFiles(registry.Slot{Name: "vpn", Argv: []string{"true"}, Env: map[string]string{"VPN_TOKEN": "secret"}, Cred: tt.service}).Run
		if strings.Contains(run, "VPN_TOKEN='secret'") != tt.shown {
			t.Errorf("the run script of a service of %v, with the agent's user %v:\n%s", tt.service, tt.agent, run)
		}
	}
}

func TestTheFinishOfASlotSaysWhenThereIsNoRestart(t *testing.T) {
	text := finishScript([]int{78, 3})
	for code, want := range map[string]int{"78": 125, "3": 125, "0": 0, "1": 0, "256": 0} {
		err := exec.Command("sh", "-c", text, "finish", code).Run()
		got := 0
		if exit, ok := err.(*exec.ExitError); ok { //nolint:errorlint // the error comes directly from Run
			got = exit.ExitCode()
		}
		if got != want {
			t.Errorf("after code %s finish exits %d, want %d", code, got, want)
		}
	}
	if err := exec.Command("sh", "-c", finishScript(nil), "finish", "78").Run(); err != nil {
		t.Errorf("without codes: %v", err)
	}
}
