package feed

import (
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestSecretsStayOut(t *testing.T) {
	const token = "sk-ant-api03-abcdefghijklmnopqrstuvwxyz0123456789ABCD"
	got := strings.Join(parseEnviron([]byte("Z=1\x00API_KEY=hush\x00DB=postgres://u:hush@h/d\x00NOTE="+token+"\x00junk\x00")), "\n")
	if strings.Contains(got, "hush") || strings.Contains(got, token) || !strings.HasSuffix(got, "\nZ=1") || strings.Contains(got, "junk") {
		t.Errorf("%s", got)
	}
}
