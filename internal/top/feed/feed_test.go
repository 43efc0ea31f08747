package feed

import (
	"fmt"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"hinit/internal/proc"
	"hinit/internal/usage"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestSecretsStayOut: by the names of variables, in URLs, and by the shape of tokens.
func TestSecretsStayOut(t *testing.T) {
	const token = "sk-ant-api03-abcdefghijklmnopqrstuvwxyz0123456789ABCD"
	got := strings.Join(environment([]byte("Z=1\x00API_KEY=hush\x00DB=postgres://u:hush@h/d\x00NOTE="+token+"\x00junk\x00")), "\n")
	if strings.Contains(got, "hush") || strings.Contains(got, token) || !strings.HasSuffix(got, "\nZ=1") || strings.Contains(got, "junk") {
		t.Errorf("%s", got)
	}
}

// TestTheTreeOfAService: children below their parents, and what has left them at the end.
func TestTheTreeOfAService(t *testing.T) {
	all := usage.Table{
		1: {}, 10: {Parent: 1, Session: 10}, 11: {Parent: 10, Session: 10}, 12: {Parent: 11, Session: 12}, 13: {Parent: 1, Session: 10}, 30: {Parent: 1, Session: 30},
	}
	var got []string
	for _, p := range tree(all, proc.Roots{Mains: map[int]string{10: "a"}}, 10, "a") {
		got = append(got, fmt.Sprintf("%d:%d", p.PID, p.Depth))
	}
	if fmt.Sprint(got) != "[10:0 11:1 12:2 13:0]" {
		t.Errorf("the tree is %s", got)
	}
}
