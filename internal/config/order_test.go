package config

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"hinit/internal/testkit"
)

func TestOrderPoliciesAndTasks(t *testing.T) {
	c := mustLoadConfig(t, `restart: {max_restarts: 9}
profiles:
  coder: {restart: {policy: on-failure, max: 5m}, stop: {grace: 1m}, needs: [db, {name: gateway-default, until: started}], env: {A: "{profile}"}, restart_on: [db]}
  later:
services:
  db: {command: [db]}
  cache: {command: [c], enabled: false}
  migrate: {command: [m], once: boot, needs: [db]}
  web:
    command: [w]
    restart: on-failure
    needs:
      - db
      - migrate
      - {name: cache, optional: true}
      - {name: nothing, optional: true}
      - {name: gateway-coder, until: started, optional: true}
    restart_on: [db, gateway-coder]
  backup: {command: [b], schedule: "0 3 * * *"}
  report:
    command: [r]
    once: manual
    restart: {policy: on-failure, max_restarts: 3, max_restarts_window: 1h}
    schedule: {cron: "@daily", timezone: UTC, jitter: 5m, missed: run}
`, nil)
	bare := func(needs []Need) (out []Need) {
		for _, n := range needs {
			n.line, n.untilSet = 0, false
			out = append(out, n)
		}
		return out
	}
	web := c.Services["web"]
	want := []Need{{Name: "db", Until: UntilReady}, {Name: "migrate", Until: UntilDone}, {Name: "gateway-coder", Until: UntilStarted, Optional: true}}
	if got := bare(web.Needs); !reflect.DeepEqual(got, want) {
		t.Errorf("web needs %+v", got)
	}
	if web.Restart.Policy != RestartOnFailure || web.Restart.MaxRestarts != 9 || web.Restart.MaxDelay != time.Minute || !reflect.DeepEqual(web.RestartOn, []string{"db", "gateway-coder"}) {
		t.Errorf("web: %+v", web)
	}
	for name, want := range map[string][2]bool{
		"db": {false, true}, "cache": {false, false}, "migrate": {true, true}, "backup": {true, false}, "report": {true, false},
	} {
		s := c.Services[name]
		if got := [2]bool{s.IsTask(), s.StartsAtBoot()}; got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	if got := c.Services["backup"]; got.Restart.Policy != RestartNever || got.Task.Schedule != (Schedule{Cron: "0 3 * * *", OnMissed: MissedSkip}) {
		t.Errorf("backup: %+v", got)
	}
	if got := c.Services["report"]; got.Restart.Policy != RestartOnFailure || got.Restart.MaxRestartsWindow != time.Hour ||
		got.Task.Schedule != (Schedule{Cron: "@daily", Timezone: "UTC", Jitter: 5 * time.Minute, OnMissed: MissedRun}) {
		t.Errorf("report: %+v", got)
	}
	coder := c.ProfileOf("coder")
	if coder.Restart.Policy != RestartOnFailure || coder.Restart.MaxDelay != 5*time.Minute || coder.Restart.InitialDelay != time.Second || coder.Stop.Grace != time.Minute ||
		coder.Env["A"] != "{profile}" || !reflect.DeepEqual(bare(coder.Needs), []Need{{Name: "db", Until: UntilReady}, {Name: "gateway-default", Until: UntilStarted}}) {
		t.Errorf("coder: %+v", coder)
	}
	if other := c.ProfileOf("other"); other.Restart.Policy != RestartAlways || other.Restart.MaxRestarts != 9 || len(other.Needs) != 0 {
		t.Errorf("a profile without settings: %+v", other)
	}
	if got := c.Origin("profiles.coder.restart.max"); !strings.HasSuffix(got, ":3") {
		t.Errorf("origin %q", got)
	}
	if len(c.Warnings) != 0 {
		t.Errorf("warnings %q", c.Warnings)
	}
}

func TestANeedOfADisabledServiceIsReported(t *testing.T) {
	c := mustLoadConfig(t, "services: {web: {command: [w], needs: [dashboard]}}", nil)
	if len(c.Warnings) != 1 || !strings.Contains(c.Warnings[0], "web waits for dashboard, which is not enabled; enable it, or make the need optional") {
		t.Errorf("warnings %q", c.Warnings)
	}
	if c = mustLoadConfig(t, "services: {web: {command: [w], needs: [dashboard]}}", map[string]string{"HERMES_DASHBOARD": "1"}); len(c.Warnings) != 0 {
		t.Errorf("warnings %q", c.Warnings)
	}
}

// The error for each mistake in needs and ordering must name the line of the mistake and the correct text.
func TestWrongOrders(t *testing.T) {
	web := func(keys string) string {
		return "services:\n  db: {command: [a]}\n  web:\n    command: [b]\n    " + keys + "\n"
	}
	for _, tt := range []struct{ name, text, want string }{
		{"unknown", web("needs: [bd]"), `5: cannot set services.web.needs: there is no service "bd"; did you mean "db"?`},
		{"nothing near", web("needs:\n    - db\n    - postgres"), `7: cannot set services.web.needs: there is no service "postgres"; there are: dashboard, db, web; a gateway is called gateway-NAME`},
		{"a word", web("needs: db"), `5: cannot set services.web.needs: expected a list of names such as [db] or [{name: db, until: started}], got the text "db"`},
		{"twice", web("needs: [db, {name: db, until: started}]"), `5: cannot set services.web.needs: "db" is in the list twice; one need has one condition`},
		{"no name", web("needs: [{until: ready}]"), `5: cannot set services.web.needs.0: its name is missing; write {name: db}`},
		{"until", web("needs: [{name: db, until: healthy}]"), `5: cannot set services.web.needs.0.until: expected one of started, ready, done, got "healthy"`},
		{"typo in a need", web("needs: [{name: db, untill: ready}]"), `5: unknown key "services.web.needs.0.untill"; did you mean "services.web.needs.0.until"?`},
		{"done service", web("needs: [{name: db, until: done}]"), `5: cannot set services.web.needs: db is never done, for it is restarted when it ends; write until: ready, or make it a task with once: boot`},
		{"ready task", "services:\n  m: {command: [a], once: boot}\n  web: {command: [b], needs: [{name: m, until: ready}]}\n", `3: cannot set services.web.needs: m is a task, which is never ready; write until: done`},
		{"profile name", web("needs: [gateway-Coder]"), `5: cannot set services.web.needs: "Coder" cannot be the name of a profile`},
		{"itself", web("needs: [web]"), `5: cannot set services.web.needs: web → web is a cycle; none of them could ever start; remove one of these needs`},
		{
			"cycle", "services:\n  a: {command: [a], needs: [c]}\n  b: {command: [a], needs: [a]}\n  c: {command: [a], needs: [b]}\n",
			`2: cannot set services.a.needs: a → c → b → a is a cycle; none of them could ever start; remove one of these needs`,
		},
		{
			"cycle through a gateway", "services:\n  web: {command: [a], needs: [gateway-coder]}\nprofiles:\n  coder:\n    needs: [web]\n",
			`5: cannot set profiles.coder.needs: gateway-coder → web → gateway-coder is a cycle; none of them could ever start; remove one of these needs`,
		},
		{
			"each restarts the other", "services:\n  a: {command: [a], restart_on: [b]}\n  b: {command: [a], restart_on: [a]}\n",
			`2: cannot set services.a.restart_on: a → b → a is a cycle; they would restart each other for ever; remove one of these names`,
		},
		{"restart on nothing", web("restart_on: [dv]"), `5: cannot set services.web.restart_on: there is no service "dv"; did you mean "db"?`},
		{"policy", web("restart: on-crash"), `5: cannot set services.web.restart.policy: expected one of always, on-failure, never, on-success, got "on-crash"`},
		{"policy as in another tool", web("restart: {policy: unless-stopped}"), `5: cannot set services.web.restart.policy: expected one of always, on-failure, never, on-success, got "unless-stopped"`},
		{"limit", web("restart: {max_restarts: -1}"), `5: cannot set services.web.restart.max_restarts: expected a number from 0 to 1000, got -1`},
		{"window", web("restart: {max_restarts_window: 0s}"), `5: cannot set services.web.restart.max_restarts_window: expected a duration above zero, got 0s`},
		{"task for ever", web("once: boot\n    restart: always"), `6: cannot use services.web.restart.policy: a task that has ended well is done, and not restarted; write never or on-failure, or remove once and schedule`},
		{"once", web("once: weekly"), `5: cannot set services.web.once: expected one of boot, each-start, manual, got "weekly"`},
		{"cron", web(`schedule: "0 3 * *"`), `5: cannot set services.web.schedule.cron: expected exactly 5 fields, found 4: [0 3 * *]; the five fields are minute, hour, day of the month, month and weekday`},
		{"hour", web(`schedule: "0 25 * * *"`), `5: cannot set services.web.schedule.cron: `},
		{"no such day", web(`schedule: "0 0 30 2 *"`), `5: cannot set services.web.schedule.cron: there is no such day in the next five years`},
		{"reboot", web(`schedule: "@reboot"`), `5: cannot set services.web.schedule.cron: @reboot is no time; a task runs at each boot with once: boot`},
		{"zone", web(`schedule: {cron: "@daily", timezone: Europe/Atlantis}`), `5: cannot set services.web.schedule.timezone: there is no time zone "Europe/Atlantis" in this container; install its zone data (package tzdata), or write the schedule in UTC`},
		{"two zones", web("schedule:\n      cron: CRON_TZ=UTC @daily\n      timezone: UTC"), `7: cannot use services.web.schedule: the time zone is set twice: CRON_TZ=UTC and timezone: UTC; remove one of them`},
		{"no times", web("schedule: {timezone: UTC}"), `5: cannot use services.web.schedule: it has no times; add cron, as in {cron: "0 3 * * *", timezone: …}`},
		{"jitter", web(`schedule: {cron: "@daily", jitter: -1s}`), `5: cannot set services.web.schedule.jitter: expected a duration of 0s or more, got -1s`},
		{"missed", web(`schedule: {cron: "@daily", missed: all}`), `5: cannot set services.web.schedule.missed: expected one of skip, run, got "all"`},
		{"key of a profile", "profiles:\n  coder: {restrat: never}\n", `2: unknown key "profiles.coder.restrat"; did you mean "profiles.coder.restart"?`},
		{"key of another place", "profiles:\n  coder: {grace: 1s}\n", `2: unknown key "profiles.coder.grace"; did you mean "profiles.coder.stop.grace"?`},
		{"marker", "profiles:\n  markr: SOUL.md\n", `2: unknown key "profiles.markr"; did you mean "profiles.marker"?`},
		{"name of a profile", "profiles:\n  Coder: {restart: never}\n", `2: cannot set profiles: "Coder" cannot be the name of a profile`},
		{"delays of a profile", "profiles:\n  coder: {restart: {max: 1ms}}\n", `2: cannot use profiles.coder.restart: max (1ms) is shorter than initial (1s)`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := writeFile(t, tt.text)
			_, err := Load(Options{Path: path, Env: envLookup(nil)})
			if err == nil || !strings.HasPrefix(err.Error(), path+":"+tt.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got  %v\nwant %s:%s", err, path, tt.want)
			}
		})
	}
}

func TestAPlainSupervisorNeedsNoGateway(t *testing.T) {
	path := writeFile(t, "services:\n  web:\n    command: [a]\n    needs: [gateway-coder]\n")
	if _, err := Load(Options{Path: path, ServicesOnly: true, Env: envLookup(nil)}); err == nil || !strings.Contains(err.Error(), `4: cannot set services.web.needs: hinit run has no gateways; remove "gateway-coder"`) {
		t.Errorf("got %v", err)
	}
}

// The time for a file must grow with its size, not with the square of the number of services or mistakes. PID 1 reads the file
// at the boot, after a re-execution and at each reload, and the agent may write it.
func TestTenThousandServicesAreReadInSeconds(t *testing.T) {
	const services = 10_000
	var chain, unknown strings.Builder
	for i := range services {
		fmt.Fprintf(&chain, "  s%d: {command: [x], needs: [s%d]}\n", i, i+1)
		fmt.Fprintf(&unknown, "  s%d: {command: [x], needs: [missing%d]}\n", i, i)
	}
	last := fmt.Sprintf("  s%d: {command: [x], needs: [", services)
	aliases := "runs: {a: {command: &names [" + strings.Repeat("missing, ", 300) + "]}}\nservices:\n"
	for i := range 300 {
		aliases += fmt.Sprintf("  s%d: {command: [x], needs: *names}\n", i)
	}
	for name, tt := range map[string]struct{ text, want string }{
		"a chain of needs":  {"services:\n" + chain.String() + last + "]}\n", ""},
		"a cycle of all":    {"services:\n" + chain.String() + last + "s0]}\n", "cannot set services.s0.needs: s0 → s1 → s2"},
		"misspelt needs":    {"services:\n" + unknown.String(), "9800 more problems are not shown; mend these first"},
		"misspelt by alias": {aliases, "more problems are not shown; mend these first"},
		"unknown keys":      {"services: {web: {" + strings.Repeat("k: 1, wrong_and_long_key: 2, ", 10_000) + "}}", "more problems are not shown; mend these first"},
	} {
		t.Run(name, func(t *testing.T) {
			testkit.WithinCPU(t, 20*time.Second, func() {
				_, err := Load(Options{Content: []byte(tt.text), Env: envLookup(nil)})
				if text := fmt.Sprint(err); (err == nil) != (tt.want == "") || !strings.Contains(text, tt.want) || !utf8.ValidString(text) {
					t.Errorf("got %.300s, want %q", text, tt.want)
				}
			})
		})
	}
}
