package logrotate

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"hinit/internal/redact"
	"hinit/internal/testkit"
	"hinit/logrotate/archive"
)

func TestOnlyTheConsoleHidesSecrets(t *testing.T) {
	// Generate the token, so that this repository contains no text that looks like a secret.
	token := "ghp_" + strings.Repeat("a1B2c3", 6)
	for _, mode := range []ConsoleMode{Raw, Prefixed, JSON} {
		for _, mask := range []bool{true, false} {
			console := newSink(t)
			s, l, dir := newSetWithLog(t, Options{Stdout: console.file, Console: mode, Mask: mask}, Limits{})
			l.HideSecrets([]string{`qu"oted secret`})
			lines := []string{"with " + token + " in it", `and a qu"oted secret`, "plain"}
			writeRun(t, l, lines...)
			_, err := s.Console(1).Write([]byte("own " + token))
			if err != nil {
				t.Fatal(err)
			}
			closeSet(t, s)
			checkLines(t, storedLines(t, dir), lines...)
			shown := console.closeAndText()
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

// TestSecretsStayHiddenAfterAReexecution checks that a re-executed hinit still masks .env values,
// and the rest of a private key.
func TestSecretsStayHiddenAfterAReexecution(t *testing.T) {
	out := newSink(t)
	o := Options{Stdout: out.file, Mask: true, tailTimeout: testkit.Patience}
	s := newSet(o)
	l := s.Open("svc", "", filepath.Join(t.TempDir(), archive.CurrentFile))
	l.HideSecrets([]string{"value-of-the-profile"})
	stdout, stderr := openPipes(t, l)
	defer closeAll(stdout, stderr)
	// Split the key, so that this repository contains no text that looks like a secret.
	writeText(t, stdout, "the value-of-the-profile\n-----BEGIN RSA PRI"+"VATE KEY-----\n")
	testkit.Until(t, "the header of the key is read", func() bool { return strings.Contains(out.textSoFar(), "BEGIN") })
	freezeSet(t, s)
	body := strings.Repeat("MIIEpAIBAAKCAQEA", 4)
	writeText(t, stdout, body+"\n-----END RSA PRI"+"VATE KEY-----\nand value-of-the-profile\nend\n")
	next := replaceSet(t, s, o)
	closeReplaced(s)
	testkit.Until(t, "the lines are shown", func() bool { return strings.HasSuffix(out.textSoFar(), "end\n") })
	if shown := out.textSoFar(); strings.Contains(shown, body) || strings.Contains(shown, "value-of-the-profile") {
		t.Errorf("shown: %q", shown)
	}
	closeAll(stdout, stderr)
	closeSet(t, next)
}

// TestAKeyWhoseHeaderIsSuppressedIsHidden checks that a private key is masked although the rate
// limit suppressed its header.
func TestAKeyWhoseHeaderIsSuppressedIsHidden(t *testing.T) {
	out := newSink(t)
	s, l, _ := newSetWithLog(t, Options{Stdout: out.file, Mask: true}, Limits{})
	l.limiter.rate.Store(1)
	stdout, stderr := openPipes(t, l)
	// Split the key, so that this repository contains no text that looks like a secret.
	writeText(t, stdout, "begin\n-----BEGIN RSA PRI"+"VATE KEY-----\n")
	testkit.Until(t, "the header to be suppressed", func() bool { return l.Stats().Suppressed == 1 })
	l.limiter.mu.Lock()
	l.limiter.secondStart = time.Time{} // The next second begins.
	l.limiter.mu.Unlock()
	body := strings.Repeat("MIIEpAIBAAKCAQEA", 4)
	writeText(t, stdout, body+"\n-----END RSA PRI"+"VATE KEY-----\n")
	testkit.Until(t, "the footer to be suppressed", func() bool { return l.Stats().Suppressed == 2 })
	l.limiter.mu.Lock()
	l.limiter.secondStart = time.Time{}
	l.limiter.mu.Unlock()
	writeText(t, stdout, "plain\n")
	closeAll(stdout, stderr)
	closeSet(t, s)
	if shown := out.closeAndText(); strings.Contains(shown, body) || !strings.Contains(shown, "plain") {
		t.Errorf("shown: %q", shown)
	}
}
