package fleetcli

import (
	"bytes"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hinit/internal/cmdline"
	"hinit/kubernetes/api/v1alpha1"
)

// TestMistakesAreAnsweredAsHinitAnswersThem checks the messages and exit codes of wrong command
// lines.
func TestMistakesAreAnsweredAsHinitAnswersThem(t *testing.T) {
	for _, c := range []struct {
		line, out, errs string
		code            int
	}{
		{"", "", "hinit-fleet COMMAND --help tells more.\n", cmdline.ExitUsage},
		{"--help", "  hinit-fleet drain [--undo] HOST ", "", cmdline.ExitDone},
		{"drain --help", "usage: hinit-fleet drain [--undo] HOST\n", "", cmdline.ExitDone},
		{"drian agents-0", "", "hinit-fleet COMMAND --help tells more.\n", cmdline.ExitUsage},
		{"move", "", "cannot run hinit-fleet move: expected: hinit-fleet move PROFILE [HOST]\n", cmdline.ExitUsage},
		{"drain agents-0 --undoo", "", "did you mean \"--undo\"?; see: hinit-fleet drain --help\n", cmdline.ExitUsage},
		{"status --kubeconfig /nowhere", "", "cannot find the API server: ", cmdline.ExitFailed},
	} {
		var out, errs bytes.Buffer
		code := Main(append([]string{"hinit-fleet"}, strings.Fields(c.line)...), &out, &errs)
		if code != c.code || !strings.Contains(out.String(), c.out) || !strings.Contains(errs.String(), c.errs) || (c.errs == "") != (errs.Len() == 0) {
			t.Errorf("hinit-fleet %s: code %d, printed %q and %q", c.line, code, out.String(), errs.String())
		}
	}
}

// TestAnAgentDoesNotWriteToTheTerminalOfAnAdministrator checks that hinit-fleet masks control
// characters in statuses and logs, which agents write.
func TestAnAgentDoesNotWriteToTheTerminalOfAnAdministrator(t *testing.T) {
	const title = "\x1b]0;owned\a\nforged  row"
	st := v1alpha1.AgentProfileStatus{
		Message: title, Cause: title, LastExit: &v1alpha1.LastExit{Cause: title}, Move: &v1alpha1.Move{Reason: title}, Conditions: []metav1.Condition{{Message: title}},
	}
	escapeTexts(&st)
	for _, text := range []string{st.Message, st.Cause, st.LastExit.Cause, st.Move.Reason, st.Conditions[0].Message} {
		if strings.ContainsAny(text, "\x1b\a\n") || !strings.Contains(text, "owned") {
			t.Errorf("%q is shown", text)
		}
	}
}
