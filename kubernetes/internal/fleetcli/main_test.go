package fleetcli

import (
	"bytes"
	"strings"
	"testing"

	"hinit/internal/cmdline"
)

// TestMistakesAreAnsweredAsHinitAnswersThem has command lines that reach no API server.
func TestMistakesAreAnsweredAsHinitAnswersThem(t *testing.T) {
	for _, c := range []struct {
		line, out, errs string
		code            int
	}{
		{"", "", "hinit-fleet COMMAND --help tells more.\n", cmdline.WrongUsage},
		{"--help", "  hinit-fleet drain [--undo] HOST ", "", cmdline.Done},
		{"drain --help", "usage: hinit-fleet drain [--undo] HOST\n", "", cmdline.Done},
		{"drian agents-0", "", "hinit-fleet COMMAND --help tells more.\n", cmdline.WrongUsage},
		{"move", "", "cannot run hinit-fleet move: expected: hinit-fleet move PROFILE [HOST]\n", cmdline.WrongUsage},
		{"drain agents-0 --undoo", "", "did you mean \"--undo\"?; see: hinit-fleet drain --help\n", cmdline.WrongUsage},
		{"status --kubeconfig /nowhere", "", "cannot find the API server: ", cmdline.Failed},
	} {
		var out, errs bytes.Buffer
		code := Main(append([]string{"hinit-fleet"}, strings.Fields(c.line)...), &out, &errs)
		if code != c.code || !strings.Contains(out.String(), c.out) || !strings.Contains(errs.String(), c.errs) || (c.errs == "") != (errs.Len() == 0) {
			t.Errorf("hinit-fleet %s: code %d, printed %q and %q", c.line, code, out.String(), errs.String())
		}
	}
}
