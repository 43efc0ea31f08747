package promises_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"hinit/client"
)

// traceFile creates an empty trace file for hinit.
func (b *testContainer) traceFile() string {
	b.t.Helper()
	file := b.path("trace")
	b.check(os.WriteFile(file, nil, 0o666), os.Chmod(file, 0o666))
	return file
}

// trace calls f, and returns the volume calls that hinit made during it.
func (b *testContainer) trace(f func()) []string {
	b.t.Helper()
	file := b.traceFile()
	b.setFaultRules("* * trace=" + file)
	f()
	b.setFaultRules()
	text, err := os.ReadFile(file)
	b.check(err)
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
}

// checkRestored returns an error unless a boot started exactly the gateways that the disk wants up. The
// disk must be in one of the allowed states.
func (b *testContainer) checkRestored(profile string, allowed ...string) error {
	wanted := b.desired(profile)
	if !slices.Contains(allowed, wanted) {
		return fmt.Errorf("%s is wanted %q on the disk; what was asked for allows %q only", profile, wanted, allowed)
	}
	s, err := b.service(profile)
	state, want := client.StateDown, client.WantDown
	if wanted == "running" {
		state, want = client.StateUp, client.WantUp
	}
	if err == nil && (s.State != state || s.Want != want) {
		err = fmt.Errorf("%s is %s, wanted %s, but the disk says %s", profile, s.State, s.Want, wanted)
	}
	return err
}

// TestCrashAfterEveryStepOfACommand kills the container after each volume call of a command. The
// next boot must restore the old intent or the new one, and never the old one after the new record
// is in place.
func TestCrashAfterEveryStepOfACommand(t *testing.T) {
	parallelInTurn(t)
	requireRoot(t)
	for _, c := range []struct{ verb, from, to string }{
		{"stop", "running", "stopped"},
		{"start", "stopped", "running"},
		{"restart", "running", "running"},
		{"restart", "stopped", "running"},
	} {
		t.Run(c.verb+" of a "+c.from+" one", func(t *testing.T) {
			t.Parallel()
			b := newTestContainer(t, setup{faults: true})
			b.profile("a", sleeper)
			b.profile("bystander", sleeper)
			b.boot()
			b.check(b.sendCommand("start", "bystander"))
			// Set the opposite intents first, so that each command changes the file.
			prepare := func() {
				t.Helper()
				verb := map[string]string{"running": "start", "stopped": "stop"}[c.from]
				b.check(b.sendCommand(verb, "a"), poll(patience, func() error { return b.checkRestored("a", c.from) }))
			}
			prepare()
			calls := b.trace(func() { b.check(b.sendCommand(c.verb, "a")) })
			checkDurable(t, calls)
			// The gateway removes its marker when it ends, before the answer or after it.
			loose := slices.ContainsFunc(calls, func(call string) bool { return strings.HasPrefix(call, "remove .gateway-planned-stop.json") })
			intent := c.from
			for k, call := range calls {
				prepare()
				b.setFaultRules(fmt.Sprintf("* * crash skip=%d", k))
				if b.sendCommand(c.verb, "a") == nil {
					if loose && k == len(calls)-1 {
						b.setFaultRules()
						continue
					}
					t.Fatalf("answered before call %d (%s), the last but %d", k, call, len(calls)-k-1)
				}
				b.wait(patience)
				b.setFaultRules()
				b.boot()
				// Without an answer, both the old and the new intent are correct. The old one is wrong after the
				// rename.
				if strings.HasPrefix(call, "rename ..hinit-intent.json") {
					intent = c.to
				}
				within(t, patience, func() error {
					err := b.checkRestored("a", intent)
					if err == nil {
						err = b.checkRestored("bystander", "running")
					}
					if err != nil {
						err = fmt.Errorf("after call %d (%s): %w", k, call, err)
					}
					return err
				})
				sheet.add("crashes", 1)
			}
			b.kill()
			b.boot()
			checkTidy(t, b.profileDir("a"))
		})
	}
}

// checkDurable fails the test unless an intent is synced before its rename, and the rename before the
// answer.
func checkDurable(t *testing.T, calls []string) {
	t.Helper()
	var steps []string
	for _, c := range calls {
		if verb, name, _ := strings.Cut(c, " "); strings.Contains(name, "gateway_state.json") {
			steps = append(steps, verb)
		}
	}
	if got := strings.Join(steps, " "); got != "open chmod write sync rename sync" {
		t.Fatalf("intent is recorded by %q; want the file synced before it is renamed, and the directory after that", got)
	}
}

// checkTidy fails the test if crashes left many temporary files.
func checkTidy(t *testing.T, dir string) {
	t.Helper()
	left, err := filepath.Glob(filepath.Join(dir, ".*.tmp"))
	if err != nil || len(left) > 0 {
		t.Errorf("after the boot these are left: %q, %v", left, err)
	}
}

// TestCrashAfterEveryStepOfABoot kills the container after each volume call of a boot. The next
// boot must restore all intents.
func TestCrashAfterEveryStepOfABoot(t *testing.T) {
	parallelInTurn(t)
	requireRoot(t)
	t.Run("the power failed while the home changed its owner", testPowerFailureDuringOwnerChange)
	wanted := map[string]string{"on": "running", "off": "stopped"}
	fresh := func() *testContainer {
		b := newTestContainer(t, setup{faults: true})
		for name, want := range wanted {
			b.profile(name, sleeper)
			file := filepath.Join(b.profileDir(name), "gateway_state.json")
			b.check(os.WriteFile(file, fmt.Appendf(nil, `{"desired_state":%q}`, want), 0o644), chownTree(b.home, b.uid))
		}
		return b
	}
	used := fresh()
	first := used.trace(used.boot)
	used.kill()
	for k, call := range first {
		b := fresh()
		b.crashBoot(k, call, wanted)
	}
	for k, call := range used.trace(used.boot) {
		used.kill()
		used.crashBoot(k, call, wanted)
	}
}

// testPowerFailureDuringOwnerChange checks that a boot marks an unfinished repair on disk
// before it changes an owner.
func testPowerFailureDuringOwnerChange(t *testing.T) {
	b := newTestContainer(t, setup{faults: true})
	b.check(os.Chown(b.home, 12345, 12345))
	const mark = ".hinit-repair-pending"
	calls := slices.DeleteFunc(b.trace(b.boot), func(call string) bool { return !strings.HasSuffix(call, " "+mark) })
	b.kill()
	if at := slices.Index(calls, "write "+mark); at < 0 || !slices.Equal(calls[at:min(at+3, len(calls))], []string{"write " + mark, "sync " + mark, "sync " + mark}) {
		t.Errorf("after the write of the mark, the file and its directory are not synced: %q", calls)
	}
}

// crashBoot kills a boot after call k, and boots again.
func (b *testContainer) crashBoot(k int, call string, wanted map[string]string) {
	b.t.Helper()
	b.setFaultRules(fmt.Sprintf("* * crash skip=%d", k))
	b.start()
	b.wait(patience)
	b.setFaultRules()
	b.boot()
	b.check(poll(patience, func() error {
		for profile, want := range wanted {
			if err := b.checkRestored(profile, want); err != nil {
				return fmt.Errorf("after call %d of a boot (%s): %w", k, call, err)
			}
		}
		return nil
	}))
	b.kill()
	sheet.add("crashes", 1)
}

// TestCrashAfterEveryStepOfAProfileCommand kills hinit profile create, delete and rename after each
// volume call. After the next boot, each profile must be complete or missing.
func TestCrashAfterEveryStepOfAProfileCommand(t *testing.T) {
	parallelInTurn(t)
	requireRoot(t)
	whole := []string{".env", "SOUL.md", "cron", "home", "logs", "memories", "plans", "sessions", "skills", "skins", "workspace"}
	// A deletion removes /tmp/hinit-NAME-UID, so no other test may use these names.
	for _, c := range []struct {
		argv          []string
		before, after string // Name of the profile before and after the command.
	}{
		{[]string{"create", "crash-a"}, "", "crash-a"},
		{[]string{"delete", "crash-a", "--yes"}, "crash-a", ""},
		{[]string{"rename", "crash-a", "crash-b"}, "crash-a", "crash-b"},
	} {
		t.Run(c.argv[0], func(t *testing.T) {
			t.Parallel()
			b := newTestContainer(t, setup{faults: true})
			b.profile("on", sleeper)
			b.profile("off", sleeper)
			b.boot()
			b.check(b.sendCommand("start", "on"), b.sendCommand("stop", "off"))
			prepare := func() {
				t.Helper()
				for _, name := range []string{"crash-a", "crash-b"} {
					b.check(poll(patience, func() error { return os.RemoveAll(b.profileDir(name)) })) // hinit may be writing in the directory.
				}
				active := filepath.Join(b.home, "active_profile")
				b.check(b.booted(), os.WriteFile(active, []byte("crash-a\n"), 0o644), os.Chown(active, b.uid, b.uid))
				if c.before != "" {
					_, err := b.manage("", "create", c.before)
					b.check(err, b.commandAndAwait("stop", c.before)) // hinit writes into the home before it answers, so each run makes the same calls.
				}
			}
			prepare()
			trace := b.traceFile()
			_, err := b.manage("* * trace="+trace, c.argv...)
			b.check(err)
			text, err := os.ReadFile(trace)
			b.check(err)
			calls := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
			for k, call := range calls {
				prepare()
				if code, err := b.manage(fmt.Sprintf("* * crash skip=%d", k), c.argv...); code != 137 {
					t.Fatalf("call %d (%s): code %d, %v", k, call, code, err)
				}
				b.kill()
				b.boot()
				fail := func(format string, args ...any) {
					t.Helper()
					t.Fatalf("after call %d of %d (%s): %s", k, len(calls), call, fmt.Sprintf(format, args...))
				}
				for name, want := range map[string]string{"on": "running", "off": "stopped"} {
					if err := poll(patience, func() error { return b.checkRestored(name, want) }); err != nil {
						fail("%v", err)
					}
				}
				// hinit removes leftovers in the background.
				var there []string
				if err := poll(patience, func() (err error) {
					there, err = b.entries("profiles")
					there = slices.DeleteFunc(there, func(name string) bool { return name == "on" || name == "off" })
					for _, name := range there {
						if strings.HasPrefix(name, ".") {
							err = fmt.Errorf("there are %q", there)
						}
					}
					return err
				}); err != nil {
					fail("%v", err)
				}
				allowed := slices.DeleteFunc([]string{c.before, c.after}, func(name string) bool { return name == "" })
				if len(there) > 1 || len(there) == 0 && len(allowed) == 2 || len(there) == 1 && !slices.Contains(allowed, there[0]) {
					fail("there are %q, want one of %q, or none if that was allowed", there, allowed)
				}
				for _, name := range there {
					got, err := b.entries("profiles/" + name)
					for _, want := range whole {
						if err != nil || !slices.Contains(got, want) {
							fail("%s has %q, %v; want all of %q", name, got, err, whole)
						}
					}
				}
				if !slices.Equal(there, slices.DeleteFunc([]string{c.after}, func(name string) bool { return name == "" })) {
					if code, err := b.manage("", c.argv...); code != 0 {
						fail("the same command again has ended with code %d: %v", code, err)
					}
				}
				sheet.add("crashes", 1)
			}
			b.kill()
			b.boot()
			checkTidy(t, b.home)
		})
	}
}

// manage runs "hinit profile" with its own fault rules, and returns its exit code.
func (b *testContainer) manage(rule string, args ...string) (code int, err error) {
	faults := b.path("faults-of-the-command")
	if err := os.WriteFile(faults, []byte(rule+"\n"), 0o644); err != nil {
		return -1, err
	}
	program := built.faulty
	argv := append([]string{
		"env", "HERMES_HOME=" + b.home, "HINIT_CONFIG=" + b.path("hinit.yaml"), "HINIT_RUNTIME_DIR=" + b.path("run"), "HINIT_FAULTS=" + faults,
		program, "profile",
	}, args...)
	out, err := b.enter(argv...)
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return exit.ExitCode(), fmt.Errorf("%w: %s", err, out)
	}
	return 0, err
}

// entries returns the names in a directory of the volume.
func (b *testContainer) entries(dir string) ([]string, error) {
	list, err := os.ReadDir(filepath.Join(b.home, dir))
	var names []string
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names, err
}

// TestKilledAtAnyInstantAfterTheAnswer kills the container after answered commands. The next boot
// must restore the last command's intent.
func TestKilledAtAnyInstantAfterTheAnswer(t *testing.T) {
	parallelInTurn(t)
	requireRoot(t)
	b := newTestContainer(t, setup{agent: "  ready: state-file"})
	random := rand.New(rand.NewPCG(*seed, 4))
	names := []string{"a", "b", "c", "d"}
	asked := map[string]string{}
	for _, name := range names {
		b.profile(name, "")
		asked[name] = ""
	}
	b.boot()
	for range shortOrFull(25, 400) {
		for _, name := range names {
			for range random.IntN(3) {
				verb := []string{"start", "stop", "restart"}[random.IntN(3)]
				b.check(b.sendCommand(verb, name))
				asked[name] = map[bool]string{true: "stopped", false: "running"}[verb == "stop"]
			}
		}
		<-time.After(time.Duration(random.IntN(300)) * time.Millisecond)
		b.kill()
		b.boot()
		for _, name := range names {
			s, err := b.service(name)
			b.check(err)
			want := map[bool]string{true: "up", false: "down"}[asked[name] == "running"]
			if s.Want != want {
				state, _ := os.ReadFile(filepath.Join(b.profileDir(name), "gateway_state.json"))
				t.Fatalf("%s was last asked to be %q, and after the boot is wanted %s; seed %d; the file:\n%s", name, asked[name], s.Want, *seed, state)
			}
		}
		sheet.add("kills", 1)
	}
}
