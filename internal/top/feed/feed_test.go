package feed

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestTheStatOfAProcessIsRead: its name can hold anything, and a line that is no such line is none.
func TestTheStatOfAProcessIsRead(t *testing.T) {
	line := "42 (a) b (c) S 7 8 9 0 -1 4194560 1 2 3 4 500 25 90 91 20 0 1 0 123456 1000000 321 18446744073709551615 0\n"
	p, is := parseStat([]byte(line))
	if want := (process{parent: 7, session: 9, cpu: 525, start: 123456, pages: 321}); !is || p != want {
		t.Errorf("%+v", p)
	}
	for _, bad := range []string{"", "42", "42 (", "42 (a)", "42 (a) S 7 8"} {
		if p, is := parseStat([]byte(bad)); is {
			t.Errorf("%q is read as %+v", bad, p)
		}
	}
}

// TestUsageIsThatOfTheTree: descendants count, what left the tree and kept the session too, and nobody else.
func TestUsageIsThatOfTheTree(t *testing.T) {
	page := uint64(os.Getpagesize())
	m := &meter{
		at:     time.Now(),
		before: map[int]process{10: {parent: 1, cpu: 100, start: 1}, 30: {parent: 1, cpu: 7, start: 9}},
		now: map[int]process{
			1:  {cpu: 1000, pages: 1000},
			10: {parent: 1, session: 10, cpu: 150, start: 1, pages: 3}, // main
			11: {parent: 10, session: 10, cpu: 50, start: 5, pages: 2}, // a new child
			12: {parent: 11, session: 12, cpu: 0, start: 5, pages: 1},  // a grandchild in a session of its own
			13: {parent: 1, session: 10, cpu: 0, start: 5, pages: 1},   // an orphan of the session
			30: {parent: 1, session: 30, cpu: 9, start: 10, pages: 4},  // another main, whose number was another's before
			40: {parent: 1, session: 40, cpu: 500, pages: 9},           // nobody's
			50: {parent: 51, session: 50}, 51: {parent: 50, session: 50},
		},
	}
	got := m.usage(map[int]string{10: "a", 30: "b"}, 2*time.Second)
	want := map[string]Usage{
		"a": {CPU: 1.0 / 2, Memory: 7 * page, Processes: 4}, "b": {CPU: 0.09 / 2, Memory: 4 * page, Processes: 1},
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if tree := fmt.Sprint(depths(m.tree(10, "a"))); tree != "[10:0 11:1 12:2 13:0]" {
		t.Errorf("the tree is %s", tree)
	}
}

func depths(tree []Process) (out []string) {
	for _, p := range tree {
		out = append(out, fmt.Sprintf("%d:%d", p.PID, p.Depth))
	}
	return out
}

// TestSecretsStayOut: by the names of variables, in URLs, and by the shape of tokens.
func TestSecretsStayOut(t *testing.T) {
	const token = "sk-ant-api03-abcdefghijklmnopqrstuvwxyz0123456789ABCD"
	got := strings.Join(environment([]byte("Z=1\x00API_KEY=hush\x00DB=postgres://u:hush@h/d\x00NOTE="+token+"\x00junk\x00")), "\n")
	if strings.Contains(got, "hush") || strings.Contains(got, token) || !strings.HasSuffix(got, "\nZ=1") || strings.Contains(got, "junk") {
		t.Errorf("%s", got)
	}
}

// TestOnlyTheRightProcIsRead: this process's own for a socket of its own, none for another number or a dead socket.
func TestOnlyTheRightProcIsRead(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	if root := procOf(socket, os.Getpid()); root != "/proc" {
		t.Errorf("found %q", root)
	}
	if root := procOf(socket, 1<<30); root != "" {
		t.Errorf("found %q for a process that is not there", root)
	}
	_ = l.Close()
	if root := procOf(socket, os.Getpid()); root != "" {
		t.Errorf("found %q behind a dead socket", root)
	}
}
