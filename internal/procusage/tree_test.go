package procusage

import (
	"fmt"
	"strings"
	"testing"

	"hinit/internal/proc"
)

func TestCommandLinesWithoutSecrets(t *testing.T) {
	for _, c := range []struct{ argv, want string }{
		{"server --port 80 --verbose", "server --port 80 --verbose"},
		{"server --api-key abc --port 80", "server --api-key ******** --port 80"},
		{"server --token=abc", "server --token=********"},
		{"env DB_PASSWORD=abc PORT=80 server", "env DB_PASSWORD=******** PORT=80 server"},
		{"psql postgres://me:abc@db/x", "psql postgres://me:********@db/x"},
		{"psql --url=postgres://me:abc@db/x", "psql --url=postgres://me:********@db/x"},
		{"curl sk-a1b2c3d4e5f6g7h8i9j0", "curl ***"},
		{"server --token --port 80", "server --token --port 80"},
	} {
		if got := maskArgs(strings.Split(c.argv, " ")); got != c.want {
			t.Errorf("%q is shown as %q, want %q", c.argv, got, c.want)
		}
	}
}

// A command line that contains the header of a private key must be shown masked, without a panic.
func TestACommandLineWithTheHeaderOfAKeyIsShown(t *testing.T) {
	const header = "-----BEGIN PRIVATE KEY-----"
	if got := maskArgs([]string{"server", header, header + "\n0123456789abcdef"}); got != "server "+header+" "+header+"\n***" {
		t.Errorf("it is shown as %q", got)
	}
}

// In a tree, children must come below their parents, and orphans at the end.
func TestTheTreeOfAService(t *testing.T) {
	all := Table{
		1: {}, 10: {Parent: 1, Session: 10}, 11: {Parent: 10, Session: 10}, 12: {Parent: 11, Session: 12}, 13: {Parent: 1, Session: 10}, 30: {Parent: 1, Session: 30},
	}
	var got []string
	owner := proc.ServiceRoots{Mains: map[int]string{10: "a"}}.Owners(all)
	for _, p := range all.Tree(10, func(pid int) bool { return owner[pid] == 10 }) {
		got = append(got, fmt.Sprintf("%d:%d", p.PID, p.Depth))
	}
	if fmt.Sprint(got) != "[10:0 11:1 12:2 13:0]" {
		t.Errorf("the tree is %s", got)
	}
}
