package cmdline_test

import (
	"os"
	"testing"

	"hinit/internal/account"
	"hinit/internal/cmdline"
)

// The list of isolated profiles must be read beside the control socket. An abstract socket has no directory, and the working
// directory must not replace it.
func TestTheListOfIsolatedProfilesIsNeverInTheWorkingDirectory(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	if list, err := cmdline.ReadIsolatedFile(dir + "/control.sock"); list != "" || err != nil {
		t.Errorf("without a list: %q, %v", list, err)
	}
	if err := os.WriteFile(account.IsolatedProfilesFile, []byte("coder\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if list, err := cmdline.ReadIsolatedFile(dir + "/control.sock"); list != "coder\n" || err != nil {
		t.Errorf("%q, %v", list, err)
	}
	for _, socket := range []string{"@hinit", "", "control.sock"} {
		if list, err := cmdline.ReadIsolatedFile(socket); list != "" || err == nil {
			t.Errorf("beside %q: %q, %v", socket, list, err)
		}
	}
}
