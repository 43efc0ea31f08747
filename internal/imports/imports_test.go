package imports

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"hinit/internal/config"
	"hinit/internal/testkit"
)

var update = flag.Bool("update", false, "write the expected results")

// TestExamples imports two configurations of each format, written after the documentation and the examples of the other
// supervisors, and compares the result and all notes with golden files. Convert has checked each result with package config.
func TestExamples(t *testing.T) {
	here, err := filepath.Abs("testdata")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"supervisord.conf", "process-compose.yaml", "layers", "compose.yml", "scandir", "source", "scandir/clock", "more/process-compose.yaml", "more/supervisord.conf", "more/layers", "more/rc", "systemd", "systemd/postgresql@16-main.service", "systemd/pg_dump@16-main.timer", "more/systemd"} {
		t.Run(strings.ReplaceAll(name, "/", "-"), func(t *testing.T) {
			result, err := Convert(filepath.Join("testdata", name), "")
			if err != nil {
				t.Fatal(err)
			}
			got := string(result.YAML)
			for _, n := range result.Notes {
				got += "# " + n.String() + "\n"
			}
			got = strings.ReplaceAll(got, here, "testdata")
			golden := filepath.Join("testdata", "golden", strings.ReplaceAll(name, "/", "-")+".golden")
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
}

// TestMeaning converts the examples, loads the results as configurations and checks their values. It ignores how the YAML is
// written.
func TestMeaning(t *testing.T) {
	load := func(name string) *config.Config {
		t.Helper()
		result, err := Convert(filepath.Join("testdata", name), "")
		if err != nil {
			t.Fatal(err)
		}
		cfg, err := config.Load(config.Options{Content: result.YAML, ServicesOnly: true})
		if err != nil {
			t.Fatal(err)
		}
		return cfg
	}
	c := load("supervisord.conf")
	if web := c.Services["web"]; web.Env["NAME"] != "the, web" || web.Env["MODE"] != "fast" || web.Stop.Grace.Seconds() != 10 || web.Logs.MaxSizeMB != 10 {
		t.Errorf("web: %+v", web)
	}
	if c.Services["mail-queue"].Enabled || !c.Services["worker_01"].Enabled || c.Services["cache"].HasLogFile || c.Services["cache"].Umask != "027" {
		t.Error("autostart, numprocs or stdout_logfile is wrong")
	}
	if word := c.Services["needs-home"].Command[2]; !strings.Contains(word, "{agent}") || strings.Contains(word, "{{") {
		t.Errorf("a brace has become a placeholder: %q", word)
	}
	c = load("process-compose.yaml")
	if got := c.Services["db"].Command; len(got) != 3 || got[2] != "echo db in $STAGE\nexec sleep 3001" || c.Services["db"].Env["STAGE"] != "test" {
		t.Errorf("db: %q", got)
	}
	if needs := c.Services["api-1"].Needs; len(needs) != 2 || needs[1].Name != "migrate" || needs[1].Until != config.UntilDone {
		t.Errorf("api-1 needs %+v", needs)
	}
	if s := c.Services["nightly"]; s.Enabled || s.Task.Schedule.Cron != "0 3 * * *" || c.Services["often"].Task.Schedule.Cron != "@every 15m" {
		t.Errorf("schedules: %+v", s.Task)
	}
	if files := c.Services["api-0"].EnvFile; len(files) != 1 || files[0] != "-/etc/api.env" {
		t.Errorf("env_file: %q", files)
	}
	if db, api := c.Services["db"].Checks, c.Services["api-0"].Checks; len(db) != 1 || db[0].Kind != config.CheckReady || db[0].HTTP.Target() != "http://127.0.0.1:8080/health" ||
		db[0].FailureThreshold != 4 || len(api) != 1 || api[0].Kind != config.CheckAlive || api[0].Command[2] != "test -d /" {
		t.Errorf("checks: %+v, %+v", db, api)
	}
	c = load("layers")
	if web := c.Services["web"].Checks; len(web) != 1 || web[0].OnFailure != config.OnFailureRestart || web[0].FailureThreshold != 2 || web[0].Name != "web-up" {
		t.Errorf("checks: %+v", web)
	}
	if db := c.Services["db"]; db.Env["STAGE"] != "site" || db.Env["REGION"] != "eu" || !c.Services["web"].Enabled || c.Services["batch"].Enabled {
		t.Errorf("db: %+v", db)
	}
	if web := c.Services["web"]; web.Restart.Policy != config.RestartOnFailure || web.Restart.InitialDelay.Milliseconds() != 100 || len(web.Needs) != 1 {
		t.Errorf("web: %+v", web)
	}
}

// TestNothingIsLeftOutInSilence checks that a note names each key that the importer can't convert.
func TestNothingIsLeftOutInSilence(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"a.conf", "[program:a]\ncommand=true\nfrobnicate=1\n", "frobnicate"},
		{"a.conf", "[program:a]\ncommand=true\n[odd]\nx=1\n", "odd"},
		{"a.conf", "[supervisord]\nminfds=9\n[program:a]\ncommand=true\n", "minfds"},
		{"a.conf", "[program:a]\ncommand=true\n[program:b]\nautostart=true\n", "program:b"},
		{"a.conf", "[program:a]\ncommand=true\nstopsignal=WINCH\n", "WINCH"},
		{"a.conf", "[program:a]\ncommand=true\nenvironment=A=%(ENV_B)s\n", "ENV_B"},
		{"a.conf", "[program:a]\ncommand=true\nstopwaitsecs=nan\n", `"nan" is no number of seconds`},
		{"a.yaml", "processes: {a: {command: x, log_configuration: {rotation: {max_age_days: soon}}}}\n", `"soon" is no number of days`},
		{"a.yaml", "processes: {a: {command: x, odd: 1}}\n", "a.odd"},
		{"a.yaml", "processes: {a: {command: x, shutdown: {odd: 1}}}\n", "a.shutdown.odd"},
		{"a.yaml", "processes: {a: {command: x, availability: {odd: 1}}}\n", "a.availability.odd"},
		{"a.yaml", "processes: {a: {command: x, readiness_probe: {exec: {command: x}, odd: 1}}}\n", "odd"},
		{"a.yaml", "odd: 1\nprocesses: {a: {command: x}}\n", "odd"},
		{"a.yaml", "processes: {a: {command: x}, b: {}}\n", "b"},
		{"a.yaml", "services: {a: {image: i, command: x, volumes: [v]}}\n", "a.volumes"},
		{"a.yaml", "services: {a: {command: x, build: .}}\n", "a.build"},
		{"a.yaml", "services: {a: {image: i, command: x, healthcheck: {test: x, odd: 1}}}\n", "a.healthcheck.odd"},
		{"a.yaml", "services: {a: {image: i, command: x, stop_signal: SIGWINCH}}\n", "WINCH"},
		{"a.yaml", "processes: {a: {command: x, schedule: {interval: often}}}\n", "a.schedule: is left out"},
		{"a.yaml", "services: {a: {override: replace, command: x, odd: 1}}\n", "a.odd"},
		{"a.yaml", "odd: 1\nservices: {a: {override: replace, command: x}}\n", "odd"},
		{"a.yaml", "services: {a: {override: replace, command: x, requires: [b]}}\n", `"b"`},
		{"a.yaml", "services: {a: {override: replace, command: x, group: g}}\n", "a.group"},
		{"a.yaml", "processes: {a: {command: x, liveness_probe: {http_get: {host: db.example, port: 80}}}}\n", "db.example"},
		{"a.yaml", "processes: {a: {command: x, liveness_probe: {http_get: {port: 80, scheme: https}}}}\n", "https"},
		{"a.yaml", "services: {a: {image: i, command: 'x ${PORT:-80} $$HOME'}}\n", "a.yaml:1: ${PORT:-80}: stays as it is written"},
		{"a.yaml", "services: {a: {image: i, command: x, user: $USER}}\n", "a.yaml:1: $USER: stays as it is written"},
		{"a.yaml", "services: {a: {image: i, command: x, ulimits: {nofile: 9}}}\n", "set services.NAME.limits"},
		{"a.conf", "[program:a]\ncommand=x\nstartretries=0\n", "in hinit.yaml 0 is no limit"},
		{"a.service", "[Service]\nExecStart=x\nRuntimeMaxSec=1h\n", "hinit ends no service because of its age (1h)"},
		{"a.service", "[Service]\nExecStart=x\nFrobnicate=1\n", "a.service:3: Frobnicate"},
		{"a.service", "[Odd]\nA=1\n[Service]\nExecStart=x\n", "a.service:1: Odd"},
		{"a.service", "[Service]\nExecStart=x\nType=forking\n", "foreground"},
		{"a.service", "[Service]\nExecStart=x\nTimeoutStopSec=infinity\n", "a.service:3: TimeoutStopSec"},
		{"a.service", "[Service]\nExecStart=x\nEnvironment=HOST=%H\n", "%H stands for"},
		{"a.service", "[Service]\nExecStart=x\nLimitODD=1\n", "odd"},
		{"a.service", "[Service]\nExecStart=x\nWatchdogSec=1min\n", "a.service:3: a.watchdog"},
		{"a.service", "[Service]\nExecStart=x\nExecStop=/bin/quit $MAINPID\n", "stop_command knows no process id"},
		{"a.service", "[Service]\nExecStart=x \\\n# a remark\n y\nNice=99\n", "a.service:5: a.nice"},
	} {
		file := filepath.Join(t.TempDir(), c.name)
		if err := os.WriteFile(file, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		result, err := Convert(file, "")
		if err != nil {
			t.Errorf("%q: %v", c.text, err)
			continue
		}
		messages := ""
		for _, n := range result.Notes {
			messages += n.String() + "\n"
		}
		if !strings.Contains(messages, c.want) {
			t.Errorf("%q: no note has %q:\n%s", c.text, c.want, messages)
		}
	}
}

// Docker replaces $$ in all texts, passes variables without a value on, and allows missing files and services. The import must keep
// that.
func TestAnImportedComposeFileLostItsOptionalFileAndItsDollars(t *testing.T) {
	c := importUnits(t, "compose.yaml", map[string]string{"compose.yaml": `services:
  a:
    image: shop
    command: [sh, -c, 'echo $$HOME']
    environment: {A: '$$x', PASSED: , EMPTY: ''}
    env_file: [{path: /etc/a.env, required: false}, /etc/b.env]
    restart: on-failure:5
    depends_on: {b: {condition: service_healthy, restart: true, required: false}}
    healthcheck: {test: 'test -n "$$A"'}
  b:
    command: x
    environment: [B=, PASSED]
`})
	a := c.Services["a"]
	if _, passed := a.Env["PASSED"]; a.Command[2] != "echo $HOME" || a.Env["A"] != "$x" || passed || a.Checks[0].Command[2] != `test -n "$A"` {
		t.Errorf("a runs %q with %q, check %q", a.Command, a.Env, a.Checks[0].Command)
	}
	if _, has := a.Env["EMPTY"]; !has || !slices.Equal(a.EnvFile, []string{"-/etc/a.env", "/etc/b.env"}) {
		t.Errorf("a has %q and the files %q", a.Env, a.EnvFile)
	}
	if a.Restart.Policy != config.RestartOnFailure || a.Restart.MaxRestarts != 5 || !a.Needs[0].Optional || !slices.Equal(a.RestartOn, []string{"b"}) {
		t.Errorf("a: restart %+v, needs %+v, restart_on %q", a.Restart, a.Needs, a.RestartOn)
	}
	b := c.Services["b"]
	if _, passed := b.Env["PASSED"]; passed || b.Env["B"] != "" {
		t.Errorf("b has %q", b.Env)
	}
}

// A program whose command can't be read must be left out. The import turned it into a shell that ran nothing and exited with
// success.
func TestAProgramWithAnOpenQuoteBecameOneThatDoesNothing(t *testing.T) {
	file := filepath.Join(t.TempDir(), "supervisord.conf")
	if err := os.WriteFile(file, []byte("[program:a]\ncommand=echo \"%(ENV_HOME)s ; x\"\n[program:b]\ncommand=b\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	result, err := Convert(file, "")
	if err != nil || strings.Contains(string(result.YAML), "exec") {
		t.Errorf("%v:\n%s", err, result.YAML)
	}
}

// %(here)s must be the directory of supervisord.conf, even if the path of the file is relative. Otherwise a command runs
// another program, or none.
func TestHereWasTheDirectoryOfEachServiceInsteadOfTheFile(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	if err := os.WriteFile("supervisord.conf", []byte("[program:a]\ncommand=%(here)s/run\ndirectory=/\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	result, err := Convert("supervisord.conf", "")
	if err != nil || !strings.Contains(string(result.YAML), "command: ["+dir+"/run]") {
		t.Errorf("%v:\n%s", err, result.YAML)
	}
}

// A task with a schedule that hinit refuses must stay a task. As a service it would be restarted all the time.
func TestATaskWithAWrongScheduleStaysATask(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.yaml")
	if err := os.WriteFile(file, []byte("processes: {a: {command: x, schedule: {cron: 61 * * * *}}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	result, err := Convert(file, "")
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(config.Options{Content: result.YAML, ServicesOnly: true})
	if err != nil || cfg.Services["a"].Task.Once != config.OnceManual || len(result.Notes) != 1 {
		t.Errorf("%v, %s\n%v", err, result.YAML, result.Notes)
	}
}

func TestWhatCannotBeImported(t *testing.T) {
	for text, want := range map[string]string{
		"":                                  "has no settings: it is neither an INI file nor a mapping in YAML",
		"root:x:0:0:root:/root:/bin/bash\n": "has no settings: it is neither an INI file nor a mapping in YAML",
		"a: b\n":                            "format",
		"\tx":                               "neither INI nor YAML",
		"[supervisord]\nnodaemon=true\n":    "no service",
		"processes: {}\n":                   "no service",
		"services: {a: {override: merge, startup: enabled}}\n": "no service",
		"services: {a: {image: redis}}\n":                      "no service",
		"[Unit]\nAfter=b.service\n":                            "no service",
		"processes: {a: {command: [1, 2]}}\n":                  "",
		"[program:a]\ncommand=\"not closed\n":                  "no service",
	} {
		file := filepath.Join(t.TempDir(), "x")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Convert(file, ""); want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	if _, err := Convert("testdata/none", ""); err == nil {
		t.Error("a file that is not there is imported")
	}
}

func TestSplit(t *testing.T) {
	for line, want := range map[string]string{
		`a b  c`:              "a|b|c",
		`a "b c" 'd e'`:       "a|b c|d e",
		`a\ b "c\"d" 'e\f'`:   `a b|c"d|e\f`,
		`"a\nb" ''`:           `a\nb|`,
		"sh -c 'x; y' # rest": "sh|-c|x; y|#|rest",
	} {
		got, err := splitWords(line, shellEscape)
		if err != nil || strings.Join(got, "|") != want {
			t.Errorf("%s: %q, %v", line, got, err)
		}
	}
	if _, err := splitWords(`a "b`, shellEscape); err == nil {
		t.Error("an open quote is taken")
	}
	for word, want := range map[string]string{"a-b": "a-b", "": "''", "it's": `'it'\''s'`, "x=${HOME}/y": `x="${HOME}"/y`, "$1": "'$1'"} {
		if got := shellQuote(word, variableReference); got != want {
			t.Errorf("%q is quoted as %s, want %s", word, got, want)
		}
	}
}

// FuzzConvert checks that any input gives either a configuration that hinit accepts or an error.
func FuzzConvert(f *testing.F) {
	for _, name := range []string{"supervisord.conf", "process-compose.yaml", "layers/001-base.yaml"} {
		text, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text))
	}
	f.Add("[Service]\nExecStart=-/bin/sh -c '%i $$A ${B} $C' ; x\nEnvironment=\"A=\\x41\"\nOnFailure=b@%n.service\n[Timer]\nOnCalendar=Mon..Fri *:0/5\n")
	f.Add("processes: {a: &a {command: x, depends_on: *a}}")
	f.Add("processes: {a: &a {<<: *a, command: x}}")
	f.Add("<<: [{services: {a: {command: '{{x}}'}}}]")
	f.Fuzz(func(t *testing.T, text string) {
		file := filepath.Join(t.TempDir(), "x")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, format := range append([]string{"", Systemd}, Formats[:3]...) {
			result, err := Convert(file, format)
			if err == nil && len(result.YAML) == 0 {
				t.Error("neither a result nor an error")
			}
		}
	})
}

// A file with nested YAML merges must be refused at once. A file of two kilobytes can otherwise use all memory and take hours.
func TestMergesOfMergesEndAtOnce(t *testing.T) {
	text := "x0: &x0 {command: sleep 1}\n"
	for i := range 8 {
		text += fmt.Sprintf("x%d: &x%[1]d {k%[1]d: x, <<: [%s]}\n", i+1, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*x%d, ", i), 40), ", "))
	}
	file := filepath.Join(t.TempDir(), "process-compose.yaml")
	if err := os.WriteFile(file, []byte(text+"processes: {a: {<<: *x7}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	testkit.WithinCPU(t, 20*time.Second, func() {
		if _, err := Convert(file, ProcessCompose); err == nil || !strings.Contains(err.Error(), "with its aliases (*name) the file has more") {
			t.Error(err)
		}
	})
}

// The import of a file with many merges of one mapping must contain their commands.
func TestMergesAreFilledIn(t *testing.T) {
	c, messages := importText(t, "process-compose.yaml", "x-a: &a {command: sleep 1}\nx-b: &b {<<: *a, namespace: n}\nprocesses:\n"+repeatFormat(900, "  p%d: {<<: [*b, *a], description: x}\n"))
	if p := c.Services["p900"]; len(p.Command) != 3 || p.Command[2] != "sleep 1" || p.Operator.Group != "n" || messages != "" {
		t.Errorf("%+v\n%s", p, messages)
	}
}

// An import of more than a thousand services must be refused. These 20,000 would take 42 seconds and half a gigabyte.
func TestAHundredProgramsOfTwoHundredReplicasAreRefused(t *testing.T) {
	for name, text := range map[string]string{
		"process-compose.yaml": "processes:\n" + repeatFormat(100, "  p%d: {command: x, replicas: 200}\n"),
		"supervisord.conf":     repeatFormat(1001, "[program:p%d]\ncommand=x\n"),
	} {
		file := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		_, err := Convert(file, "")
		if err == nil || !strings.Contains(err.Error(), "has more than 1000 services, with the replicas of each, or more") {
			t.Errorf("%s: %v", name, err)
		}
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("%s took %v", name, took)
		}
	}
}

func repeatFormat(n int, format string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, format, i+1)
	}
	return b.String()
}

// No service may wait for the end of a task whose schedule can't be imported. Such a task runs only by hand, so the
// service would never start.
func TestNothingWaitsForATaskThatRunsOnlyByHand(t *testing.T) {
	for name, files := range map[string]map[string]string{
		"a wrong cron": {"a.yaml": `processes:
  job: {command: x, schedule: {cron: "61 * * * *"}}
  app: {command: y, depends_on: {job: {condition: process_completed_successfully}}}
`},
		"an OnCalendar that cron does not have": {
			"job.service": "[Service]\nType=oneshot\nExecStart=/bin/x\n", "job.timer": "[Timer]\nOnCalendar=*-*-* 03:00:30\n",
			"app.service": "[Unit]\nRequires=job.service\nAfter=job.service\n[Service]\nExecStart=/bin/y\n",
		},
	} {
		dir := t.TempDir()
		path := dir
		for file, text := range files {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			if len(files) == 1 {
				path = filepath.Join(dir, file)
			}
		}
		r, err := Convert(path, "")
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		text := string(r.YAML)
		if !strings.Contains(text, "once: manual") || strings.Contains(text, "needs:") {
			t.Errorf("%s: something waits for it:\n%s", name, text)
		}
		if !slices.ContainsFunc(r.Notes, func(n Note) bool { return strings.Contains(n.Text, "its need of job is left out") }) {
			t.Errorf("%s: the notes don't say so: %v", name, r.Notes)
		}
	}
}

func TestATimeoutOfS6ThatIsNoNumberIsNoted(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"run": "#!/bin/sh\n", "timeout-kill": "soon\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r, err := Convert(dir, S6)
	if err != nil || !slices.ContainsFunc(r.Notes, func(n Note) bool { return strings.Contains(n.Text, `"soon" is no number of milliseconds`) }) {
		t.Errorf("%v, %v", err, r.Notes)
	}
}

// A file that hinit import has written must be refused as a configuration of hinit. As a compose file, it would lose most of
// its keys in a second import.
func TestTheConfigurationOfHinitWasTakenForACompose(t *testing.T) {
	for text, want := range map[string]string{
		"services:\n  web: {command: [sleep, inf], restart: always}\n": "seems to be a configuration of hinit",
		"services:\n  web: {command: [sleep, inf], comand: x}\n":       "seems to be a configuration of hinit",
		"services:\n  web: {image: x}\n  db: {command: sleep 1}\n":     Compose,
		"x-base: &base {build: .}\nservices:\n  web: {<<: *base}\n":    Compose,
		"services:\n  web: {override: merge, command: sleep 1}\n":      Pebble,
		"services: {}\n": Pebble,
	} {
		file := filepath.Join(t.TempDir(), "hinit.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := detect(file)
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, want) {
			t.Errorf("%q is %q, want %q", text, got, want)
		}
	}
}

// A byte order mark, which some editors put at the beginning of a file, must not hide the first section. The import left out
// the section with the command.
func TestAFileWithAByteOrderMarkLostItsFirstSection(t *testing.T) {
	for name, text := range map[string]string{"a.service": "[Service]\r\nExecStart=/bin/true\r\n", "a.conf": "[program:a]\r\ncommand=/bin/true\r\n"} {
		file := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(file, []byte("\ufeff"+text), 0o600); err != nil {
			t.Fatal(err)
		}
		result, err := Convert(file, "")
		if err != nil || len(result.Notes) != 0 || !strings.Contains(string(result.YAML), "/bin/true") {
			t.Errorf("%s: %v, %v, %s", name, err, result.Notes, result.YAML)
		}
	}
}

// An import must add a note to a schedule with a day of the month and a weekday, because such a schedule runs on fewer days
// under hinit.
func TestAScheduleWithBothKindsOfDaysIsNoted(t *testing.T) {
	for cron, noted := range map[string]bool{
		"0 3 1,15 * 5": true, "CRON_TZ=UTC 0 3 1 * MON": true, "0 3 1 * *": false, "0 3 ? * 5": false, "0 3 */2 * 5": true, "0 3 */1 * 5": false, "0 3 10 * */2": true, "@weekly": false,
	} {
		path := filepath.Join(t.TempDir(), "process-compose.yaml")
		text := fmt.Sprintf("processes:\n  job: {command: x, schedule: {cron: %q}}\n", cron)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := Convert(path, "")
		is := slices.ContainsFunc(r.Notes, func(n Note) bool { return strings.Contains(n.Text, "a day of the month and a weekday") })
		if err != nil || is != noted || !strings.Contains(string(r.YAML), cron) {
			t.Errorf("%s: noted %v, %v:\n%s", cron, is, err, r.YAML)
		}
	}
}
