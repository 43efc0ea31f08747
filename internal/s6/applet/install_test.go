package applet_test

import (
	"os"
	"slices"
	"testing"

	"hinit/internal/s6/applet"
)

func TestEveryToolIsInstalled(t *testing.T) {
	const dir = "../../../docker/command"
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var installed []string
	for _, e := range entries {
		installed = append(installed, e.Name())
		if target, err := os.Readlink(dir + "/" + e.Name()); err != nil || target != "/hinit-tools" {
			t.Errorf("%s leads to %q, %v", e.Name(), target, err)
		}
	}
	names := applet.Names()
	slices.Sort(names)
	if !slices.Equal(installed, names) {
		t.Errorf("docker/command has %q, the binary answers to %q", installed, names)
	}
}
