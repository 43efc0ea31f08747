package promises_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"hinit/internal/testkit"
)

// asAgent runs a program in the container as the agent's user, with hinit's variables.
func (b *testContainer) asAgent(argv ...string) ([]byte, error) {
	id := fmt.Sprint(b.uid)
	environment := []string{
		"setpriv", "--reuid", id, "--regid", id, "--clear-groups", "env",
		"HERMES_HOME=" + b.home, "HINIT_CONFIG=" + b.path("hinit.yaml"), "HINIT_RUNTIME_DIR=" + b.path("run"),
	}
	return b.enter(append(environment, argv...)...)
}

func (b *testContainer) asRoot(argv ...string) ([]byte, error) {
	return b.enter(append([]string{
		"env", "HERMES_HOME=" + b.home, "HINIT_CONFIG=" + b.path("hinit.yaml"), "HINIT_RUNTIME_DIR=" + b.path("run"),
	}, argv...)...)
}

// enableS6Tools enables s6 emulation, and returns the scan directory.
func (b *testContainer) enableS6Tools(tools ...string) (scan string) {
	b.t.Helper()
	scan = b.path("service")
	b.env = append(b.env, "HINIT_S6=1", "S6_PROFILE_GATEWAY_SCANDIR="+scan)
	b.check(os.Mkdir(b.path("command"), 0o755))
	for _, tool := range tools {
		b.check(os.Symlink(filepath.Join(built.root, "hinit-tools"), b.tool(tool)))
	}
	return scan
}

func (b *testContainer) tool(name string) string { return filepath.Join(b.path("command"), name) }

// hostileName returns a directory name that would move a terminal's cursor or forge a line.
func hostileName(r *rand.Rand) string {
	parts := []string{
		"\x1b[2J", "\x1b]0;owned\a", "\n", "\r", "\b\b\b\b", "\t", "\x7f", "\u009b31m", "\xff", "\xc2", "\u202e", "\u2066", "\u200b", "\u2028", "\u0301\u0301\u0301",
		" gateway-a  up", " [hinit] ", "x", "é", "語",
	}
	var name strings.Builder
	for range 1 + r.IntN(12) {
		name.WriteString(parts[r.IntN(len(parts))])
	}
	if r.IntN(4) == 0 {
		name.WriteString(strings.Repeat("w", 255))
	}
	return name.String()[:min(200, name.Len())] + fmt.Sprint(r.Uint32())
}

// firstControlChar returns the first unmasked control character of an output, or "".
func firstControlChar(out []byte) string {
	for i, line := range strings.Split(string(out), "\n") {
		if !utf8.ValidString(line) {
			return fmt.Sprintf("line %d is no UTF-8: %q", i+1, line)
		}
		for _, r := range line {
			if unicode.In(r, unicode.C, unicode.Zl, unicode.Zp) {
				return fmt.Sprintf("line %d has %q: %q", i+1, r, line)
			}
		}
	}
	return ""
}

// TestNamesOfTheAgentForgeNothing checks that terminal sequences in service names never reach
// root's terminal.
func TestNamesOfTheAgentForgeNothing(t *testing.T) {
	parallelInTurn(t)
	requireRoot(t)
	b := newTestContainer(t, setup{config: quick})
	scan := b.enableS6Tools("s6-svscanctl")
	b.profile("a", sleeper)
	b.boot()
	b.startAndAwait("a")
	r := rand.New(rand.NewPCG(*seed, 31))
	t.Logf("seed %d", *seed)
	for range shortOrFull(1, 10) {
		before := len(b.status().Services)
		const many = 20
		for range many {
			dir := filepath.Join(scan, hostileName(r))
			temp := filepath.Join(scan, ".new")
			b.check(os.Mkdir(temp, 0o755), testkit.WriteProgram(filepath.Join(temp, "run"), []byte("#!/bin/sh\n"+sleeper)),
				os.WriteFile(filepath.Join(temp, "down"), nil, 0o644), chownTree(temp, b.uid), os.Rename(temp, dir))
		}
		if out, err := b.asAgent(b.tool("s6-svscanctl"), "-a", scan); err != nil {
			t.Fatalf("the agent's scan: %v: %s", err, out)
		}
		var names []string
		within(t, patience, func() error {
			services := b.status().Services
			names = nil
			for _, s := range services {
				names = append(names, s.Name)
			}
			if len(services) != before+many {
				return fmt.Errorf("%d services are known, not %d", len(services), before+many)
			}
			return nil
		})
		for _, args := range [][]string{{"status"}, {"status", "-v"}, {"status", "--json"}, {"events", "-n", "1000"}, {"doctor"}} {
			out, _ := b.asRoot(append([]string{built.shipped}, args...)...) // doctor may report a problem.
			if what := firstControlChar(out); what != "" {
				t.Errorf("hinit %s: %s", args[0], what)
			}
			if args[0] != "status" || len(args) > 1 {
				continue
			}
			for line := range strings.SplitSeq(string(out), "\n") {
				if width := utf8.RuneCountInString(line); width > 200 {
					t.Errorf("a line of the status has %d columns: %q", width, line)
				}
			}
			if got := strings.Count(string(out), "\n"); got < len(names) || got > len(names)+8 {
				t.Errorf("the status of %d services has %d lines:\n%s", len(names), got, out)
			}
		}
		for i := range 4 {
			name := names[len(names)-1-r.IntN(many)]
			verb := []string{"status", "start", "stop", "status"}[i]
			out, _ := b.asRoot(built.shipped, verb, name) // The command has a special exit code for a stopped profile.
			if what := firstControlChar(out); what != "" || strings.Count(string(out), "\n") > 4 {
				t.Errorf("hinit %s %q: %s\n%s", verb, name, what, out)
			}
		}
		for _, flag := range []string{"-t", "-b", "-q", "-i", "-anq"} {
			out, err := b.asAgent(b.tool("s6-svscanctl"), flag, scan)
			if err == nil || !strings.Contains(string(out), "Permission denied") {
				t.Errorf("s6-svscanctl %s of the agent: %v: %s", flag, err, out)
			}
			sheet.add("ends refused", 1)
		}
		sheet.add("hostile names", many)
	}
	b.check(b.checkState("a", "up")())
	console, err := os.ReadFile(b.path("err"))
	b.check(err)
	if what := firstControlChar(console); what != "" {
		t.Errorf("the console: %s", what)
	}
}

// TestNoLinkOfTheAgentsIsFollowedForALog shows logs to root while the agent replaces them with
// links to root's files. No text of these files may appear.
func TestNoLinkOfTheAgentsIsFollowedForALog(t *testing.T) {
	parallelInTurn(t)
	requireRoot(t)
	b := newTestContainer(t, setup{config: quick})
	b.profile("a", "echo spoken; "+sleeper)
	b.boot()
	b.startAndAwait("a")
	const precious, archive = "precious", "@400000006b00e1dd1213c744.s"
	secrets := b.path("secrets")
	b.check(os.Mkdir(secrets, 0o700), os.WriteFile(filepath.Join(secrets, "current"), []byte(precious+"\n"), 0o600),
		os.WriteFile(filepath.Join(secrets, archive), []byte(precious+"\n"), 0o600))
	log := filepath.Join(b.home, "logs", "gateways", "a")
	within(t, patience, func() error {
		_, err := os.Stat(filepath.Join(log, "current"))
		return err
	})
	b.check(os.WriteFile(filepath.Join(log, archive), []byte("2026-01-01T00:00:00.000000000Z  old\n"), 0o644), os.Lchown(filepath.Join(log, archive), b.uid, b.uid))
	pairs := [][2]string{
		{log, log + ".twin"}, {filepath.Join(log, "current"), filepath.Join(log, "twin")}, {filepath.Join(log, archive), filepath.Join(log, "old")},
	}
	b.check(os.Symlink(secrets, pairs[0][1]), os.Symlink(filepath.Join(secrets, "current"), pairs[1][1]), os.Symlink(filepath.Join(secrets, archive), pairs[2][1]))
	stop, stopped := make(chan struct{}), make(chan int)
	go func() {
		for n := 0; ; n++ {
			pair := pairs[n%len(pairs)] // The last two pairs of links cause errors.
			_ = unix.Renameat2(unix.AT_FDCWD, pair[0], unix.AT_FDCWD, pair[1], unix.RENAME_EXCHANGE)
			select {
			case <-stop:
				stopped <- n
				return
			default:
			}
		}
	}()
	shown := 0
	for i := range shortOrFull(20, 500) {
		out, err := b.asRoot("timeout", "30", built.shipped, "logs", []string{"--previous=true", "-n=5"}[i%2], "a")
		if strings.Contains(string(out), precious) {
			t.Errorf("hinit logs has shown what the link leads to: %s", out)
			break
		}
		if err == nil {
			shown++
		} else if !regexp.MustCompile(`link|no such file|not a directory`).Match(out) { // Ignore the error: the file may be exchanged at any moment.
			t.Errorf("hinit logs: %v: %s", err, out)
		}
		sheet.add("logs shown", 1)
	}
	close(stop)
	swaps := <-stopped
	sheet.add("log swaps", swaps)
	t.Logf("%d were shown, and there were %d exchanges", shown, swaps)
}

// TestAnActiveProfileOfAnyKindKeepsNoCommandFromWorking checks profile commands while
// active_profile is a link or no file. The link must not be followed.
func TestAnActiveProfileOfAnyKindKeepsNoCommandFromWorking(t *testing.T) {
	parallelInTurn(t)
	requireRoot(t)
	b := newTestContainer(t, setup{faults: true})
	b.profile("on", sleeper)
	b.boot()
	outside := b.path("outside")
	active := filepath.Join(b.home, "active_profile")
	for range shortOrFull(1, 10) {
		for kind, put := range map[string]func() error{
			"a link to root's file": func() error { return os.Symlink(outside, active) },
			"a link to nothing":     func() error { return os.Symlink("nowhere", active) },
			"a link to itself":      func() error { return os.Symlink("active_profile", active) },
			"a directory":           func() error { return os.Mkdir(active, 0o755) },
			"a FIFO":                func() error { return unix.Mkfifo(active, 0o666) },
		} {
			b.check(os.WriteFile(outside, []byte("a\n"), 0o600), os.RemoveAll(active), put(), os.Lchown(active, b.uid, b.uid))
			for _, args := range [][]string{{"create", "a"}, {"rename", "a", "b"}, {"delete", "b", "--yes"}} {
				begin := time.Now()
				if code, err := b.manage("", args...); code != 0 {
					t.Errorf("with %s %s ended with code %d: %v", kind, args[0], code, err)
				}
				if took := time.Since(begin); took > patience {
					t.Errorf("with %s %s took %v", kind, args[0], took)
				}
				sheet.add("profile commands", 1)
			}
			if text, err := os.ReadFile(outside); err != nil || string(text) != "a\n" {
				t.Errorf("with %s root's file is %q, %v", kind, text, err)
			}
		}
	}
}
