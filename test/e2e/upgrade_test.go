package e2e

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// checkUpgradePage types the commands of docs/how-to/upgrade-in-place.md.
func checkUpgradePage(t *testing.T, c *container) {
	before, _ := c.status().find("gateway-default")

	page, err := os.ReadFile("../../docs/how-to/upgrade-in-place.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "```sh\n")
	script, _, ok := strings.Cut(rest, "```")
	if !ok {
		t.Fatal("the page has no commands")
	}
	dir := t.TempDir()
	mustDocker(t, "cp", c.id+":/init", filepath.Join(dir, "hinit-new"))
	program, err := os.OpenFile(filepath.Join(dir, "hinit-new"), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	// Text after the end of the ELF file changes nothing.
	if _, err := program.WriteString("another binary"); err != nil {
		t.Fatal(err)
	}
	if err := program.Close(); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", "-e", "-c", strings.ReplaceAll(script, "CONTAINER", c.id))
	cmd.Dir = dir
	// The re-execution is refused while hinit writes the boot log.
	reexec := func(r result) result {
		t.Helper()
		eventually(t, settle, func() error {
			if r.code != 0 && strings.Contains(r.err, "try again") {
				r = c.exec("hinit", "reexec")
			}
			if r.code != 0 {
				return errors.New(r.String())
			}
			return nil
		})
		return r
	}
	if r := reexec(command(cmd)); !strings.Contains(r.out, "is image 2 now (it was") {
		t.Fatal(r)
	}
	if r := reexec(c.exec("hinit", "reexec")); !strings.Contains(r.out, "image 3 now: same binary as before, /init; nothing changed") {
		t.Error(r)
	}
	after, _ := c.status().find("gateway-default")
	if after.PID != before.PID || after.State != "up" {
		t.Errorf("the gateway was %+v and is %+v", before, after)
	}
	if r := c.exec("hinit", "doctor"); strings.Contains(r.out, "binary") {
		t.Errorf("the doctor is not content: %v", r)
	}
}
