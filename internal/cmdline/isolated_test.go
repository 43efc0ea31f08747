package cmdline_test

import (
	"errors"
	"io/fs"
	"os"
	"testing"

	"hinit/internal/account"
	"hinit/internal/cmdline"
)

// With an abstract control socket, programs looked for the list in their working directory.
func TestTheListOfIsolatedProfilesIsNeverInTheWorkingDirectory(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	if _, err := cmdline.ReadIsolated(dir + "/control.sock"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a list: %v", err)
	}
	if err := os.WriteFile(account.IsolatedFile, []byte("coder\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if list, err := cmdline.ReadIsolated(dir + "/control.sock"); list != "coder\n" || err != nil {
		t.Errorf("%q, %v", list, err)
	}
	for _, socket := range []string{"@hinit", "", "control.sock"} {
		if list, err := cmdline.ReadIsolated(socket); list != "" || err == nil || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("beside %q: %q, %v", socket, list, err)
		}
	}
}
