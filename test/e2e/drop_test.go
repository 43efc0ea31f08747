package e2e

import (
	"strings"
	"testing"
)

// checkPrivilegeDrop runs the agent's command as root with docker exec (contract, sections 11 and 12).
func checkPrivilegeDrop(t *testing.T, c *container) {
	owner := func(options []string) string {
		t.Helper()
		c.mustExec("rm", "-f", "/opt/data/config.yaml")
		if r := c.execAs(options, "hermes", "config", "set", "k", "v"); r.code != 0 {
			t.Fatal(r)
		}
		who, _, _ := strings.Cut(c.owners("/opt/data/config.yaml")["/opt/data/config.yaml"], " ")
		return who
	}
	if got := owner(nil); got != "hermes:hermes" {
		t.Errorf("written by root's docker exec: owner %s", got)
	}
	if got := owner([]string{"-u", "hermes"}); got != "hermes:hermes" {
		t.Errorf("written by hermes: owner %s", got)
	}
	for _, value := range []string{"0", "false", "no", "", "garbage", "2"} {
		if got := owner([]string{"-e", "HERMES_DOCKER_EXEC_AS_ROOT=" + value}); got != "hermes:hermes" {
			t.Errorf("opt-out value %q kept root: owner %s", value, got)
		}
	}
	for _, value := range []string{"1", "true", "Yes"} {
		if got := owner([]string{"-e", "HERMES_DOCKER_EXEC_AS_ROOT=" + value}); got != "root:root" {
			t.Errorf("opt-out value %q did not keep root: owner %s", value, got)
		}
	}
	c.mustExec("rm", "-f", "/opt/data/config.yaml")

	r := c.execAs([]string{"-w", "/tmp", "-e", "ODD= a b "}, "hermes", "agent-info")
	for _, line := range []string{`cwd: +"/tmp"`, `uid: +10000`, `gid: +10000`, `groups: +\[10000\]`, `"HOME":"/opt/data"`, `"ODD":" a b "`} {
		if !matches(line, r.out) {
			t.Errorf("no %s in %v", line, r)
		}
	}
	if r := c.exec("hermes", "no-such-command"); r.code != 2 {
		t.Errorf("want the agent's own code 2: %v", r)
	}
	if r := c.execAs([]string{"-t"}, "hermes", "agent-info"); !strings.Contains(r.out, `"stdout":true`) {
		t.Errorf("the terminal is lost: %v", r)
	}

	// A program that can't be executed gives 127, and a missing user gives 126.
	c.mustExec("chmod", "644", "/opt/hermes/.venv/bin/hermes")
	if r := c.exec("hermes", "--version"); r.code != 127 || r.err != "hermes-shim: /opt/hermes/.venv/bin/hermes not found or not executable\n" {
		t.Errorf("want 127: %v", r)
	}
	c.mustExec("chmod", "755", "/opt/hermes/.venv/bin/hermes")
	c.mustExec("sed", "-i", "/^hermes/d", "/etc/passwd")
	if r := c.exec("hermes", "--version"); r.code != 126 || strings.Count(r.err, "hermes-shim: ") != 2 {
		t.Errorf("want 126: %v", r)
	}
}
