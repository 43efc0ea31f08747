package imports

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"hinit/internal/config"
	"hinit/internal/testkit"
)

func importText(t *testing.T, name, text string) (*config.Config, string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	result, err := Convert(file, "")
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(config.Options{Content: result.YAML, ServicesOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	messages := ""
	for _, n := range result.Notes {
		messages += n.String() + "\n"
	}
	return cfg, messages
}

// A service with a profile in a compose file must not be enabled, because compose starts it only if the user names the profile.
// An import must not start a debug console.
func TestAServiceOfAComposeProfileWasStarted(t *testing.T) {
	c, messages := importText(t, "compose.yaml", "services:\n  web: {image: x, command: a}\n  debug: {image: x, command: b, profiles: [debug]}\n")
	if c.Services["debug"].Enabled || !c.Services["web"].Enabled || !strings.Contains(messages, "debug.profiles: is not enabled") {
		t.Errorf("debug is enabled: %v\n%s", c.Services["debug"].Enabled, messages)
	}
}

// A health check with "disable: false" must become a check, and the limits of the container must be imported.
func TestAComposeHealthcheckThatIsNotDisabledWasLost(t *testing.T) {
	c, messages := importText(t, "compose.yaml", `services:
  web: {image: x, command: a, healthcheck: {test: [CMD, x], disable: false}, mem_limit: 512m, pids_limit: 100, cpuset: "0,1", oom_score_adj: 300}
`)
	if web := c.Services["web"]; len(web.Checks) != 1 || web.Memory.Max != 512<<20 || web.Priority.MaxPIDs != 100 || web.Priority.CPUAffinity != "0,1" || web.Priority.OOMScore != 300 {
		t.Errorf("%+v", web)
	}
	if strings.Contains(messages, "nothing like") || !strings.Contains(messages, "ENTRYPOINT") {
		t.Errorf("%s", messages)
	}
}

// A second YAML document and a repeated key must be errors, and a tag such as !reset must cause a note.
func TestAPartOfAYAMLFileWasIgnored(t *testing.T) {
	for text, want := range map[string]string{
		"services: {a: {image: x, command: a}}\n---\nservices: {b: {image: x, command: b}}\n": "line 2: cannot read a second document",
		"services:\n  a: {image: x, command: a}\n  a: {image: x, command: b}\n":               `line 3: mapping key "a" already defined at line 2`,
		"services: {a: {image: x, command: \"\x01\"}}\n":                                      "line 1: cannot parse YAML: the character U+0001",
	} {
		file := filepath.Join(t.TempDir(), "compose.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if result, err := Convert(file, ""); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q\n%s", text, err, want, result.YAML)
		}
	}
	if _, messages := importText(t, "compose.yaml", "services:\n  a: {image: x, command: x, user: !reset null}\n"); !strings.Contains(messages, "compose.yaml:2: !reset: the tag") {
		t.Errorf("%s", messages)
	}
}

// A program that may be restarted three times, five minutes apart, must keep that limit. hinit restarted it for ever, because
// its default window for the limit is ten minutes.
func TestAMaximumOfRestartsWasNeverReached(t *testing.T) {
	for name, text := range map[string]string{
		"process-compose.yaml": "processes: {a: {command: x, availability: {restart: on_failure, backoff_seconds: 300, max_restarts: 3}}}\n",
		"compose.yaml":         "services: {a: {image: x, command: x, restart: 'on-failure:3'}}\n",
	} {
		c, _ := importText(t, name, text)
		if r := c.Services["a"].Restart; r.MaxRestarts != 3 || r.MaxRestartsWindow < 1000*time.Hour {
			t.Errorf("%s: %+v", name, r)
		}
	}
	if c, _ := importText(t, "compose.yaml", "services: {a: {image: x, command: x}}\n"); c.Restart.MaxRestartsWindow != 10*time.Minute {
		t.Errorf("%+v", c.Restart)
	}
}

// A daemon of process-compose must not be enabled. As a service, hinit would kill the daemon as soon as its first
// process ends.
func TestADaemonOfProcessComposeIsNotEnabled(t *testing.T) {
	c, messages := importText(t, "process-compose.yaml", "processes: {a: {command: x, is_daemon: true}, b: {command: x, is_daemon: false, is_tty: false, is_elevated: false}}\n")
	if c.Services["a"].Enabled || !c.Services["b"].Enabled || strings.Contains(messages, "b.") {
		t.Errorf("a: %v, b: %v\n%s", c.Services["a"].Enabled, c.Services["b"].Enabled, messages)
	}
}

// A variable that the program's own shell sets, such as $i in a loop, must stay. The shell of the import replaced it. Also, %%
// before a bracket must become one percent sign.
func TestTheDollarsAndPercentSignsOfAProgramWereReplaced(t *testing.T) {
	c, messages := importText(t, "supervisord.conf", `[program:loop]
command=bash -c "for i in 1 2; do echo $i %(ENV_X)s; done"
[program:web]
command=gunicorn --access-logformat "%%(h)s %%(t)s" app:app
environment=FORMAT="%%(h)s",RATE="100%%"
`)
	if got := c.Services["loop"].Command; len(got) != 3 || got[2] != `exec bash -c 'for i in 1 2; do echo ''$''i '"${X}"'; done'` {
		t.Errorf("loop: %q", got)
	}
	if web := c.Services["web"]; !slices.Equal(web.Command, []string{"gunicorn", "--access-logformat", "%(h)s %(t)s", "app:app"}) || web.Env["FORMAT"] != "%(h)s" || web.Env["RATE"] != "100%" {
		t.Errorf("web: %q, %q\n%s", web.Command, web.Env, messages)
	}
}

// %(group_name)s must be the name of the program's group, or the name of a program without a group.
func TestTheGroupNameOfAProgramIsItsGroup(t *testing.T) {
	c, messages := importText(t, "supervisord.conf", `[program:worker]
command=run %(group_name)s
process_name=%(group_name)s_%(process_num)d
numprocs=2
startretries=3
exitcodes=2
[program:alone]
command=run %(group_name)s
exitcodes=0,2
[group:queue]
programs=worker
`)
	if w := c.Services["queue_1"]; w.Operator.Group != "queue" || !slices.Equal(w.Command, []string{"run", "queue"}) || c.Services["alone"].Command[1] != "alone" {
		t.Errorf("%+v", c.Services)
	}
	if zero, one := c.Services["queue_0"].Restart.SuccessCodes, c.Services["queue_1"].Restart.SuccessCodes; !slices.Equal(zero, []int{2}) || !slices.Equal(one, zero) {
		t.Errorf("success codes: %v and %v", zero, one)
	}
	for _, want := range []string{"startretries: hinit counts each restart", "[program:worker] exitcodes: exit code 0 is a success"} {
		if !strings.Contains(messages, want) {
			t.Errorf("no note has %q:\n%s", want, messages)
		}
	}
	if strings.Contains(messages, "alone] exitcodes") {
		t.Errorf("%s", messages)
	}
}

// A chain of requirements must be enabled as a whole. If the third service of the chain stayed disabled, the others would wait
// for ever.
func TestWhatARequiredServiceRequiresIsEnabled(t *testing.T) {
	c, _ := importText(t, "001-a.yaml", `services:
  c: {override: replace, command: c}
  b: {override: replace, command: b, requires: [c]}
  a: {override: replace, command: a, requires: [b], startup: enabled}
  x: {override: replace, command: x, requires: [y]}
  y: {override: replace, command: y}
`)
	for name, want := range map[string]bool{"a": true, "b": true, "c": true, "x": false, "y": false} {
		if c.Services[name].Enabled != want {
			t.Errorf("%s is enabled: %v", name, !want)
		}
	}
}

// If a later layer changes the action of a failed check, the later action must count.
func TestALaterLayerOfPebbleChangesAnAction(t *testing.T) {
	c := importUnits(t, ".", map[string]string{
		"001-a.yaml": "services: {a: {override: replace, command: a, on-check-failure: {up: restart}}}\nchecks: {up: {override: replace, http: {url: 'http://localhost:80/'}}}\n",
		"002-b.yaml": "services: {a: {override: merge, on-check-failure: {up: ignore}}}\nchecks: {up: {override: merge, http: {url: 'http://localhost:81/'}}}\n",
	})
	if checks := c.Services["a"].Checks; len(checks) != 1 || checks[0].OnFailure != config.OnFailureReport || checks[0].HTTP.URL != "http://localhost:81/" {
		t.Errorf("%+v", checks)
	}
}

// A backslash at the end of a command must not make the setting after an empty line an argument of the command.
func TestABackslashBeforeAnEmptyLineSwallowedTheNextSetting(t *testing.T) {
	c, _ := importText(t, "a.service", "[Service]\nExecStart=/bin/a \\\n  --b \\\n\nUser=www\n")
	if a := c.Services["a"]; !slices.Equal(a.Command, []string{"/bin/a", "--b"}) || a.User != "www" {
		t.Errorf("%q as %q", a.Command, a.User)
	}
}

// The order of settings in a unit must not change their meaning. TimeoutSec must set both the timeout of the start and the
// grace of the stop.
func TestTheOrderOfSettingsOfAUnitChangedTheirMeaning(t *testing.T) {
	for _, text := range []string{
		"[Unit]\nStartLimitIntervalSec=0\nStartLimitBurst=5\n[Service]\nRestartMaxDelaySec=5min\nRestartSec=5\n",
		"[Unit]\nStartLimitBurst=5\nStartLimitIntervalSec=0\n[Service]\nRestartSec=5\nRestartMaxDelaySec=5min\n",
	} {
		c, _ := importText(t, "a.service", text+"Type=notify\nExecStart=/bin/a\nTimeoutSec=20min\n")
		a := c.Services["a"]
		if r := a.Restart; r.MaxRestarts != 0 || r.InitialDelay != 5*time.Second || r.MaxDelay != 5*time.Minute {
			t.Errorf("%s: %+v", text, r)
		}
		if a.Notify.Timeout != 20*time.Minute || a.Stop.Grace != 20*time.Minute {
			t.Errorf("notify %v, stop %v", a.Notify.Timeout, a.Stop.Grace)
		}
	}
}

// In systemd, EnvironmentFile wins over Environment. A note must say so, because hinit has the opposite order.
func TestAFileOfVariablesLostAgainstTheUnit(t *testing.T) {
	_, messages := importText(t, "a.service", "[Service]\nEnvironment=OPTS=\nEnvironmentFile=-/etc/default/a\nExecStart=/bin/a $OPTS\nSendSIGKILL=no\n")
	for _, want := range []string{"a.service:3: EnvironmentFile: systemd prefers the file", "a.service:5: SendSIGKILL: hinit always sends KILL"} {
		if !strings.Contains(messages, want) {
			t.Errorf("no note has %q:\n%s", want, messages)
		}
	}
}

// The import of a file of a megabyte with a mistake in each line must end within a minute.
func TestAFileOfMistakesEndsSoon(t *testing.T) {
	testkit.SkipIfShort(t)
	for name, text := range map[string]string{
		"supervisord.conf":     "[program:a]\ncommand=x\n[program:b]\n" + strings.Repeat("x\n", 400_000),
		"unit.service":         "[Service]\nExecStart=x\n" + repeatFormat(11_000, "Odd%d=1\n"),
		"compose.yaml":         "services: {a: {image: x, command: '" + repeatFormat(11_000, "$v%d") + "'}}\n",
		"process-compose.yaml": "processes: {a: {command: x, replicas: 600, " + repeatFormat(20, "odd%d: 1,") + "}}\n",
	} {
		file := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		testkit.WithinCPU(t, time.Minute, func() {
			_, err := Convert(file, "")
			if few := name == "process-compose.yaml"; few != (err == nil) || !few && !strings.Contains(err.Error(), "more than 10000 settings that need a note") {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
}

// A note must name a command that is no UTF-8, such as a command with the é of Latin-1.
func TestACommandThatIsNoUTF8WasChanged(t *testing.T) {
	for name, text := range map[string]string{
		"supervisord.conf": "[program:a]\ncommand=echo \xe9\n[program:b]\ncommand=b\n",
		"a.service":        "[Service]\nType=oneshot\nExecStart=/bin/a\nExecStart=/bin/b \xe9\n",
	} {
		if _, messages := importText(t, name, text); !strings.Contains(messages, "cannot be taken apart: it is no UTF-8") {
			t.Errorf("%s:\n%s", name, messages)
		}
	}
}

// A wrong value must remove only its own key. The grace of the stop and the restart policy must stay.
func TestAWrongKeyTookItsNeighboursWithIt(t *testing.T) {
	c, messages := importText(t, "compose.yaml", "services: {a: {image: x, command: x, stop_signal: SIGRTMIN+3, stop_grace_period: 1m, restart: 'on-failure:many'}}\n")
	if a := c.Services["a"]; a.Stop.Grace != time.Minute || a.Restart.Policy != config.RestartOnFailure || !strings.Contains(messages, "a.stop.signal: is left out: expected one of TERM") {
		t.Errorf("%+v, %+v\n%s", a.Stop, a.Restart, messages)
	}
	c, messages = importText(t, "001-a.yaml", "services: {a: {override: replace, command: a, on-success: ignore, on-failure: ignore, backoff-delay: 1s, backoff-limit: 100ms}}\n")
	if a := c.Services["a"]; a.Restart.Policy != config.RestartNever || !strings.Contains(messages, "a.restart.max: is left out: max (100ms)") {
		t.Errorf("%+v\n%s", a.Restart, messages)
	}
}

// A note must ask to write out a directory with ~ or a variable. command must win over entrypoint, and a check may end in an
// empty argument.
func TestAPathOfTheHomeBecameOneBesideTheFile(t *testing.T) {
	c, messages := importText(t, "process-compose.yaml", "processes: {a: {command: x, entrypoint: [y], working_dir: ~/src}, b: {entrypoint: [y, z], working_dir: '${HOME}/src'}}\n")
	if strings.Count(messages, "write it out, because variables and ~ are not filled in") != 2 || strings.Contains(c.Services["a"].Cwd, "src") {
		t.Errorf("%s in %s", messages, c.Services["a"].Cwd)
	}
	if a, b := c.Services["a"].Command, c.Services["b"].Command; !slices.Equal(a, []string{"bash", "-c", "x"}) || !slices.Equal(b, []string{"y", "z"}) {
		t.Errorf("%q, %q", a, b)
	}
	c, _ = importText(t, "compose.yaml", "services: {a: {image: x, command: x, healthcheck: {test: [CMD, test, -z, '']}}, b: {image: x, command: x, healthcheck: {test: [NONE]}}}\n")
	if len(c.Services["a"].Checks) != 1 || len(c.Services["b"].Checks) != 0 {
		t.Errorf("%+v, %+v", c.Services["a"].Checks, c.Services["b"].Checks)
	}
}
