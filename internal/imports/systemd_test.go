package imports

import (
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"hinit/internal/config"
)

// importUnits writes units into a directory, imports a path in it, and returns the configuration.
func importUnits(t *testing.T, path string, units map[string]string) *config.Config {
	t.Helper()
	dir := t.TempDir()
	for name, text := range units {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	result, err := Convert(filepath.Join(dir, path), "")
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(config.Options{Content: result.YAML, ServicesOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// Commands with quotes, escapes, prefixes and variables must run as systemd.service(5) says.
func TestCommandsOfUnits(t *testing.T) {
	for line, want := range map[string][]string{
		`ExecStart=/bin/a "b c" 'd e' f\x41\sg \; h`:     {"/bin/a", "b c", "d e", "fA g", ";", "h"},
		`ExecStart=/bin/a 100%% $$HOME a$B`:              {"/bin/a", "100%", "$HOME", "a$B"},
		`ExecStart=/bin/a $B ${C}d`:                      {"sh", "-c", `exec /bin/a $B "${C}"d`},
		`ExecStart=:/bin/a $B ${C}`:                      {"/bin/a", "$B", "${C}"},
		"ExecStartPre=-/bin/p\nExecStart=/bin/a":         {"sh", "-c", "{ /bin/p || true; } && exec /bin/a"},
		"ExecStart=/bin/old\nExecStart=\nExecStart=/n":   {"/n"},
		"ExecStart=/bin/a \\\n; a remark\n  b":           {"/bin/a", "b"},
		"ExecStart=/bin/a --of %p --is %i --unit %n":     {"/bin/a", "--of", "a", "--is", "x-y", "--unit", "a@x-y.service"},
		"Type=oneshot\nExecStart=/a\nExecStart=-/b\n":    {"sh", "-c", "/a && { /b || true; }"},
		"Environment=A=1\nExecStart=/bin/sh -c '$A {x}'": {"/bin/sh", "-c", "$A {x}"},
	} {
		c := importUnits(t, "a@x-y.service", map[string]string{"a@.service": "[Service]\n" + line + "\n"})
		if got := c.Services["a-x-y"].Command; !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
}

// A stop or reload command that only sends a signal to the main process must be imported as this signal, with or without the
// signal's name.
func TestKillInAUnitIsASignal(t *testing.T) {
	for line, want := range map[string]struct {
		stop   syscall.Signal
		reload string
	}{
		"/bin/kill $MAINPID":                {syscall.SIGTERM, "TERM"},
		"-/usr/bin/kill -s QUIT ${MAINPID}": {syscall.SIGQUIT, "QUIT"},
		"kill -SIGINT $MAINPID":             {syscall.SIGINT, "INT"},
		"/bin/kill -10 $MAINPID":            {syscall.SIGUSR1, "USR1"},
	} {
		c := importUnits(t, "a.service", map[string]string{"a.service": "[Service]\nExecStart=/bin/a\nExecStop=" + line + "\nExecReload=" + line + "\n"})
		if a := c.Services["a"]; a.Stop.Signal != want.stop || a.Operator.ReloadSignal != want.reload || len(a.Operator.StopCommand) != 0 {
			t.Errorf("%s: %v, %v, %q", line, a.Stop.Signal, a.Operator.ReloadSignal, a.Operator.StopCommand)
		}
	}
}

// The last value must count. A drop-in comes after its unit, and an empty value clears earlier values.
func TestDropInsOfUnits(t *testing.T) {
	c := importUnits(t, "a@x.service", map[string]string{
		"a@.service":             "[Service]\nExecStart=/bin/a\nEnvironment=A=1\nEnvironment=B=1\nNice=1\n",
		"a@.service.d/10.conf":   "[Service]\nNice=2\nEnvironment=B=2\nUMask=022\n",
		"a@x.service.d/05.conf":  "[Service]\nNice=3\nUMask=\n",
		"a@y.service.d/05.conf":  "[Service]\nNice=9\n",
		"a@x.service.d/not.text": "[Service]\nNice=9\n",
	})
	if a := c.Services["a-x"]; a.Priority.Nice != 3 || a.Env["A"] != "1" || a.Env["B"] != "2" || a.Umask != "" {
		t.Errorf("%+v", a)
	}
}

func TestTimesOfSystemd(t *testing.T) {
	for value, want := range map[string]string{
		"90": "1m30s", "5min 20s": "5m20s", "1h30min": "1h30m", "500ms": "500ms", "2 weeks": "336h", "1.5h": "1h30m", "1d": "24h",
	} {
		if got, err := parseTimeSpan(value); got != want || err != nil {
			t.Errorf("%s: %q, %v", value, got, err)
		}
	}
	for _, value := range []string{"infinity", "0", "5 parsecs", "s"} {
		if got, err := parseTimeSpan(value); err == nil {
			t.Errorf("%s: %q", value, got)
		}
	}
	for value, want := range map[string]string{
		"daily": "0 0 * * *", "weekly": "0 0 * * MON", "monthly": "0 0 01 * *", "hourly": "00 * * * *",
		"*-*-* 6,18:00": "00 6,18 * * *", "Mon..Fri 07:30": "30 07 * * MON-FRI", "Sunday 03:10:00": "10 03 * * SUN",
		"*:0/15": "0/15 * * * *", "*-01,07-01 04:00 UTC": "00 04 01 01,07 *", "Sat,Mon..Tue 1:02": "02 1 * * SAT,MON-TUE", "Mon *-*-1..7": "0 0 1-7 * MON",
	} {
		if got, _, err := cronOfCalendar(value); got != want || err != nil {
			t.Errorf("%s: %q, %v", value, got, err)
		}
	}
	for _, value := range []string{"2030-01-01", "*-*~1", "*:*:30", "soon"} {
		if got, _, err := cronOfCalendar(value); err == nil {
			t.Errorf("%s: %q", value, got)
		}
	}
}

// A service whose timer hinit can't represent must become a manual task, not a service that runs all the time.
func TestATimerWithoutATimeLeavesATask(t *testing.T) {
	c := importUnits(t, "a.timer", map[string]string{"a.service": "[Service]\nExecStart=/bin/a\nRestart=no\n", "a.timer": "[Timer]\nOnCalendar=2030-01-01\n"})
	if a := c.Services["a"]; a.Task.Once != config.OnceManual {
		t.Errorf("%+v", a.Task)
	}
}

// The import must end although a template names another instance of itself in OnFailure.
func TestATemplateThatActivatesItself(t *testing.T) {
	c := importUnits(t, "a.service", map[string]string{
		"a.service":  "[Unit]\nOnFailure=b@%n.service\nAfter=.service\n[Service]\nExecStart=/bin/a\n",
		"b@.service": "[Unit]\nOnFailure=b@%n.service ../x.service\n[Service]\nType=oneshot\nExecStart=/bin/b %i\n",
	})
	if len(c.Services) != 3 || c.Services["b-a-service"].Task.Once != config.OnceManual { // the two units, and the built-in hinit-actions
		t.Errorf("%v", c.Services)
	}
}
