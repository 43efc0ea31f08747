package logs

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"hinit/internal/config"
	"hinit/logrotate"
	"hinit/supervisor"
)

// newLogs makes a Logs whose console is a file. It also returns functions that read the console and the messages.
func newLogs(t *testing.T, cfg *config.Config, secrets func(string) ([]string, bool, error)) (l *Logs, console func() string, messages *strings.Builder) {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "console"))
	if err != nil {
		t.Fatal(err)
	}
	messages = new(strings.Builder)
	cfg.Logs.Console = "raw"
	l = New(Options{
		Config: func() *config.Config { return cfg }, ReadSecrets: secrets,
		Say:  func(format string, args ...any) { fmt.Fprintf(messages, format+"\n", args...) },
		Warn: func(format string, args ...any) { fmt.Fprintf(messages, "warning: "+format+"\n", args...) },
	})
	l.Set = logrotate.New(logrotate.Options{Warn: func(string, string) {}, OnWrite: func() {}, Mask: true, Stdout: f, Stderr: f})
	t.Cleanup(func() { _ = l.Close(t.Context()) })
	return l, func() string {
		if err := l.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}, messages
}

// TestSecretsAreMasked checks that with logs.mask the secrets in the .env of a profile are masked in its log.
func TestSecretsAreMasked(t *testing.T) {
	cfg := new(config.Config)
	secret := "sk-0123456789abcdef"
	l, console, output := newLogs(t, cfg, func(string) ([]string, bool, error) {
		if secret == "" {
			return nil, false, errors.New("the disk is gone")
		}
		return []string{secret}, false, nil
	})
	l.Open("gateway-coder", "coder", "", supervisor.KindGateway)
	write := func(text string) {
		t.Helper()
		stdout, stderr, err := l.Pipes("gateway-coder")
		if err != nil {
			t.Fatal(err)
		}
		_ = stderr.Close()
		if _, err := io.WriteString(stdout, text+"\n"); err != nil {
			t.Fatal(err)
		}
		_ = stdout.Close()
		l.Drain("gateway-coder")
	}
	l.MaskSecrets("gateway-coder", "coder")
	write("open " + secret)
	cfg.Logs.MaskSecrets = true
	l.MaskSecrets("gateway-coder", "coder")
	write("first " + secret)
	secret = "sk-fedcba9876543210"
	l.ReadSecrets("gateway-coder", "coder")
	write("second " + secret)
	got := console()
	if !strings.Contains(got, "open sk-0123456789abcdef") {
		t.Errorf("masked although nobody asked for it:\n%s", got)
	}
	if strings.Contains(got, "first sk-") || strings.Contains(got, "second sk-") {
		t.Errorf("the console shows a secret:\n%s", got)
	}
	secret = ""
	l.ReadSecrets("gateway-coder", "coder")
	if want := "gateway-coder: cannot read its secrets, so the values in its .env may be shown here: the disk is gone\n"; output.String() != want {
		t.Errorf("it said %q", output)
	}
}

// TestADiskThatHangsHoldsUpNoStart checks that a start waits at most one second for the secrets that are to be masked.
func TestADiskThatHangsHoldsUpNoStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := make(chan struct{})
		cfg := new(config.Config)
		cfg.Logs.MaskSecrets = true
		l := &Logs{options: Options{Config: func() *config.Config { return cfg }, ReadSecrets: func(string) ([]string, bool, error) {
			<-answer
			return nil, false, nil
		}}}
		begin := time.Now()
		l.MaskSecrets("gateway-coder", "coder")
		if took := time.Since(begin); took != secretsTimeout {
			t.Errorf("it took %v", took)
		}
		close(answer)
	})
}

func TestALogThatIsHeldIsNotDropped(t *testing.T) {
	l, _, _ := newLogs(t, new(config.Config), nil)
	gone := func(string) bool { return false }
	l.Open("web", "", "", supervisor.KindService)
	first, second := l.Protect("web"), l.Protect("web")
	first()
	l.Drop("web", gone)
	if l.Get("web") == nil {
		t.Error("the log of a service that is being registered was dropped")
	}
	second()
	l.Drop("web", func(string) bool { return true })
	if l.Get("web") == nil {
		t.Error("the log of a service that has come back was dropped")
	}
	l.Open("cmd", "", "", supervisor.KindCmd)
	l.DropUnknown(func(name string) bool { return name == "cmd" })
	if l.Get("web") != nil || l.Get("cmd") == nil {
		t.Error("a sweep drops the logs of services that are gone, and no others")
	}
	if _, _, err := l.Pipes("web"); err == nil {
		t.Error("a service without a log was connected")
	}
}

// TestAHookWritesNothingToStandardOutput checks that both outputs of a hook go to standard error. Standard output is
// reserved for the CMD.
func TestAHookWritesNothingToStandardOutput(t *testing.T) {
	l, _, _ := newLogs(t, new(config.Config), nil)
	for name, same := range map[string]bool{"hook-1": true, "web": false} {
		l.Open(name, "", "", supervisor.KindHook)
		stdout, stderr, err := l.Pipes(name)
		if err != nil {
			t.Fatal(err)
		}
		if got := stdout == stderr; got != same {
			t.Errorf("%s: one pipe for both: %v", name, got)
		}
		_, _ = stdout.Close(), stderr.Close()
	}
}

// TestSecretsOfAllProfilesTakeLittleMemory checks that the masked secrets of all profiles together stay below a limit,
// and that hinit says when it does not mask all. Each agent can write as many secrets as it likes.
func TestSecretsOfAllProfilesTakeLittleMemory(t *testing.T) {
	cfg := new(config.Config)
	cfg.Logs.MaskSecrets = true
	large := strings.Repeat("s", 16<<10)
	l, _, output := newLogs(t, cfg, func(string) ([]string, bool, error) { return []string{large}, false, nil })
	for i := range 2 * maxMaskedBytes / len(large) {
		l.Open(fmt.Sprint("gateway-", i), "coder", "", supervisor.KindGateway)
		l.ReadSecrets(fmt.Sprint("gateway-", i), "coder")
	}
	kept := 0
	for _, n := range l.maskedBytes {
		kept += n
	}
	if kept != maxMaskedBytes {
		t.Errorf("%d bytes are kept, want %d", kept, maxMaskedBytes)
	}
	if want := "gateway-255: its .env has more secrets than hinit masks"; !strings.Contains(output.String(), want) {
		t.Errorf("it said %.200q", output)
	}
	l.Drop("gateway-0", func(string) bool { return false })
	l.ReadSecrets("gateway-0", "coder") // the removal has begun, so these secrets must not use up the space for others
	l.Open("gateway-new", "coder", "", supervisor.KindGateway)
	if values, all := l.fitSecrets("gateway-new", []string{large}); len(values) != 1 || !all {
		t.Error("the room of a service that is gone is not used again")
	}
}
