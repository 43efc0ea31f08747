package kanban

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestConfig(t *testing.T) {
	t.Parallel()
	c, warnings, err := ReadConfig(filepath.Join(t.TempDir(), "config.yaml"))
	must(t, err)
	if !c.DispatchInGateway || c.Interval != time.Minute || c.FailureLimit != 2 || c.StaleTimeout != 4*time.Hour || c.MaxSpawn != nil || c.MaxInProgress != nil ||
		c.MaxInProgressPerProfile != nil || c.DefaultAssignee != "" || c.rotateBytes() != 2<<20 || c.logBackups() != 1 || len(warnings) != 0 {
		t.Errorf("defaults: %+v %q", c, warnings)
	}
	number := func(p *int) int {
		if p == nil {
			return -1
		}
		return *p
	}
	for text, want := range map[string]struct {
		got  func(Config) any
		is   any
		warn bool
	}{
		`max_in_progress_per_profile: 3`:      {func(c Config) any { return number(c.MaxInProgressPerProfile) }, 3, false},
		`max_in_progress_per_profile: "2"`:    {func(c Config) any { return number(c.MaxInProgressPerProfile) }, 2, false},
		`max_in_progress_per_profile: 2.7`:    {func(c Config) any { return number(c.MaxInProgressPerProfile) }, 2, false},
		`max_in_progress_per_profile: true`:   {func(c Config) any { return number(c.MaxInProgressPerProfile) }, 1, false},
		`max_in_progress_per_profile: 0`:      {func(c Config) any { return number(c.MaxInProgressPerProfile) }, -1, true},
		`max_in_progress_per_profile: -1`:     {func(c Config) any { return number(c.MaxInProgressPerProfile) }, -1, true},
		`max_in_progress_per_profile: abc`:    {func(c Config) any { return number(c.MaxInProgressPerProfile) }, -1, true},
		`max_in_progress_per_profile: null`:   {func(c Config) any { return number(c.MaxInProgressPerProfile) }, -1, false},
		`max_in_progress: [1]`:                {func(c Config) any { return number(c.MaxInProgress) }, -1, true},
		`max_spawn: 8`:                        {func(c Config) any { return number(c.MaxSpawn) }, 8, false},
		`failure_limit: 0`:                    {func(c Config) any { return c.FailureLimit }, 2, true},
		`failure_limit: 5`:                    {func(c Config) any { return c.FailureLimit }, 5, false},
		`dispatch_interval_seconds: 0`:        {func(c Config) any { return c.Interval }, time.Minute, false},
		`dispatch_interval_seconds: 0.2`:      {func(c Config) any { return c.Interval }, time.Second, false},
		`dispatch_interval_seconds: 2.5`:      {func(c Config) any { return c.Interval }, 2500 * time.Millisecond, false},
		`dispatch_interval_seconds: soon`:     {func(c Config) any { return c.Interval }, time.Minute, true},
		`dispatch_interval_seconds: .nan`:     {func(c Config) any { return c.Interval }, time.Minute, true},
		`dispatch_stale_timeout_seconds: x`:   {func(c Config) any { return c.StaleTimeout }, time.Duration(0), true},
		`dispatch_stale_timeout_seconds: 0`:   {func(c Config) any { return c.StaleTimeout }, time.Duration(0), false},
		`dispatch_stale_timeout_seconds: 600`: {func(c Config) any { return c.StaleTimeout }, 10 * time.Minute, false},
		`default_assignee: " Coder "`:         {func(c Config) any { return c.DefaultAssignee }, "Coder", false},
		`default_assignee: 7`:                 {func(c Config) any { return c.DefaultAssignee }, "", true},
		`dispatch_in_gateway: false`:          {func(c Config) any { return c.DispatchInGateway }, false, false},
		`dispatch_in_gateway: "no"`:           {func(c Config) any { return c.DispatchInGateway }, true, true},
		`worker_log_backup_count: 0`:          {func(c Config) any { return c.logBackups() }, 0, false},
		`worker_log_rotate_bytes: 0`:          {func(c Config) any { return c.rotateBytes() }, int64(2 << 20), true},
	} {
		c, warnings, err := ParseConfig([]byte("other: 1\nkanban:\n  " + text + "\n"))
		must(t, err)
		if got := want.got(c); got != want.is || (len(warnings) > 0) != want.warn {
			t.Errorf("%s: %v, warnings %q", text, got, warnings)
		}
	}
	for _, text := range []string{"kanban: 7", "kanban: [1]", "kanban:"} {
		if _, _, err := ParseConfig([]byte(text)); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
	if _, _, err := ParseConfig([]byte("\t{")); err == nil {
		t.Error("no YAML, no error")
	}
	for value, off := range map[string]bool{"0": true, "False": true, "no": true, " OFF ": true, "": false, "1": false, "true": false, "maybe": false} {
		env := testEnv{"HERMES_KANBAN_DISPATCH_IN_GATEWAY": value}.get
		if (Config{DispatchInGateway: true}).GatewaysDispatch(env) == off || (Config{}).GatewaysDispatch(env) {
			t.Errorf("%q", value)
		}
	}
}

// TestAliasesOfAliasesEndAtOnce checks that nested YAML aliases, which would fill the memory, are
// refused at once.
func TestAliasesOfAliasesEndAtOnce(t *testing.T) {
	text := "a0: &a0 [x]\n"
	for i := range 9 {
		text += fmt.Sprintf("a%d: &a%[1]d [%s*a%d]\n", i+1, strings.Repeat(fmt.Sprintf("*a%d, ", i), 9), i)
	}
	for what, text := range map[string]string{"aliases": text + "kanban: {x: *a9}\n", "values": "kanban: [" + strings.Repeat("1,", 400_001) + "]"} {
		if _, _, err := ParseConfig([]byte(text)); err == nil || !strings.Contains(err.Error(), "more than 100000 values") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func FuzzConfig(f *testing.F) {
	f.Add("kanban: {max_spawn: 3, default_assignee: x}")
	f.Add("kanban:\n  failure_limit: 1e300\n  dispatch_interval_seconds: -.inf")
	f.Add("kanban: &a [*a]")
	f.Fuzz(func(t *testing.T, text string) {
		c, _, err := ParseConfig([]byte(text))
		if err != nil {
			return
		}
		if c.Interval < time.Second || c.StaleTimeout < 0 || c.FailureLimit < 1 || c.rotateBytes() < 1 || c.logBackups() < 0 {
			t.Errorf("%+v", c)
		}
		for _, limit := range []*int{c.MaxSpawn, c.MaxInProgress, c.MaxInProgressPerProfile} {
			if limit != nil && *limit < 1 {
				t.Errorf("%+v", c)
			}
		}
	})
}

func FuzzSlug(f *testing.F) {
	f.Add(" Default ")
	f.Add("../x")
	f.Fuzz(func(t *testing.T, name string) {
		slug, err := CanonicalSlug(name)
		if err != nil || slug == "" {
			return
		}
		if strings.ContainsAny(slug, "/.\x00 ") || strings.Trim(slug[:1], "-_") == "" || len(slug) > 64 || slug != strings.ToLower(slug) {
			t.Errorf("%q became %q", name, slug)
		}
		if again, err := CanonicalSlug(slug); again != slug || err != nil {
			t.Errorf("%q became %q, %v", slug, again, err)
		}
	})
}

// FuzzEncode checks that encode writes ASCII JSON with the same meaning as its input.
func FuzzEncode(f *testing.F) {
	f.Add("a", int64(3), true)
	f.Add("\u2028\U0001F600\x7f\x00\xff\"\\", int64(-1), false)
	f.Fuzz(func(t *testing.T, s string, n int64, yes bool) {
		text := encodeLikePython(jsonObject{{"s", s}, {"n", n}, {"l", []string{s, ""}}, {"b", yes}, {"o", jsonObject{{s, nil}}}})
		var back struct {
			S string
			N int64
			L []string
			B bool
			O map[string]any
		}
		if err := json.Unmarshal([]byte(text), &back); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		want := strings.ToValidUTF8(s, "\uFFFD")
		if clean := []rune(s); string(clean) != back.S || back.N != n || back.B != yes || len(back.L) != 2 || back.L[0] != back.S {
			t.Errorf("%q became %+v (%q)", s, back, want)
		}
		for i := range len(text) {
			if text[i] < 0x20 || text[i] > 0x7f {
				t.Errorf("byte %x in %s", text[i], text)
			}
		}
	})
}

// FuzzPayload checks that a pass works whatever another program has written as the payload of an event.
func FuzzPayload(f *testing.F) {
	f.Add(`{"source_status": "review"}`, `["a"]`)
	f.Add(`{`, "\xff")
	f.Fuzz(func(t *testing.T, payload, skills string) {
		b := newBoard(t)
		id := b.createReady("alpha")
		b.execSQL("UPDATE tasks SET skills = ? WHERE id = ?", skills, id)
		task := b.claim(id)
		b.execSQL("UPDATE task_events SET payload = ? WHERE run_id = ?", payload, task.CurrentRunID)
		b.advance(2 * DefaultClaimTTL)
		if r := b.tick(); r.Reclaimed != 1 || len(r.Spawned) != 1 {
			t.Errorf("%+v", r)
		}
	})
}
