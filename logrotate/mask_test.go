package logrotate

import (
	"strings"
	"testing"

	"hinit/internal/redact"
)

func TestOnlyTheConsoleHidesSecrets(t *testing.T) {
	// generated, so that no file of this repository contains text that looks like a secret
	token := "ghp_" + strings.Repeat("a1B2c3", 6)
	for _, mode := range []ConsoleMode{Raw, Prefixed, JSON} {
		for _, mask := range []bool{true, false} {
			console := newSink(t)
			s, l, dir := fixture(t, Options{Stdout: console.file, Console: mode, Mask: mask}, Limits{})
			l.Hide([]string{`qu"oted secret`})
			lines := []string{"with " + token + " in it", `and a qu"oted secret`, "plain"}
			say(t, l, lines...)
			_, err := s.Console(1).Write([]byte("own " + token))
			if err != nil {
				t.Fatal(err)
			}
			closeSet(t, s)
			wantLines(t, stored(t, dir), lines...)
			shown := console.text()
			wanted := 0
			if mask {
				wanted = 3
			}
			if strings.Count(shown, redact.Masked) != wanted || strings.Contains(shown, token) == mask || strings.Count(shown, "\n") != 4 {
				t.Errorf("%v, mask %v: %q", mode, mask, shown)
			}
		}
	}
}
