package profiles_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"hinit/internal/fsutil"
	"hinit/profiles"
	"hinit/profiles/manage"
)

func TestReadState(t *testing.T) {
	for name, tt := range map[string]struct {
		content string
		prior   string
		start   bool
		warning string // Part of the warning; "" for none.
	}{
		"observed":                 {profiles.ObservedState, "running", true, ""},
		"bootstrap seed":           {`{"gateway_state":"running"}` + "\n", "running", true, ""},
		"desired wins over state":  {`{"gateway_state":"running","desired_state":"stopped"}`, "stopped", false, ""},
		"desired running":          {`{"gateway_state":"stopped","desired_state":"running"}`, "running", true, ""},
		"desired null":             {`{"gateway_state":"running","desired_state":null}`, "running", true, ""},
		"desired empty":            {`{"gateway_state":"running","desired_state":""}`, "", false, ""},
		"desired unknown":          {`{"gateway_state":"running","desired_state":"paused"}`, "paused", false, ""},
		"desired isn't mapped":     {`{"desired_state":"draining"}`, "draining", false, ""},
		"desired number":           {`{"desired_state":1,"gateway_state":"running"}`, "1", false, ""},
		"desired bool":             {`{"desired_state":true}`, "true", false, ""},
		"desired object":           {`{"desired_state":{ "a" : [1, 2] }}`, `{"a":[1,2]}`, false, ""},
		"desired with escapes":     {`{"desired_state":"runn\u0069ng"}`, "running", true, ""},
		"key with escapes":         {`{"desired\u005fstate":"running"}`, "running", true, ""},
		"last of a repeated key":   {`{"desired_state":"running","desired_state":"stopped"}`, "stopped", false, ""},
		"last one is null":         {`{"desired_state":"stopped","gateway_state":"running","desired_state":null}`, "running", true, ""},
		"draining":                 {`{"gateway_state":"draining"}`, "running", true, ""},
		"degraded":                 {`{"gateway_state":"degraded"}`, "running", true, ""},
		"starting":                 {`{"gateway_state":"starting"}`, "starting", false, ""},
		"startup_failed":           {`{"gateway_state":"startup_failed"}`, "startup_failed", false, ""},
		"case matters":             {`{"gateway_state":"Running"}`, "Running", false, ""},
		"neither":                  {`{"pid":4}`, "None", false, ""},
		"empty object":             {`{}`, "None", false, ""},
		"byte order mark":          {"\ufeff" + `{"desired_state":"running"}`, "running", true, ""},
		"space around":             {"\n {\"desired_state\" : \"running\"}\r\n", "running", true, ""},
		"nested is not top level":  {`{"platforms":{"desired_state":"running"}}`, "None", false, ""},
		"empty":                    {``, "None", false, "isn't JSON"},
		"half":                     {`{"desired_state":"run`, "None", false, "isn't JSON"},
		"more behind":              {`{"desired_state":"running"}{}`, "None", false, "isn't JSON"},
		"NUL bytes after a crash":  {"\x00\x00\x00\x00", "None", false, "isn't JSON"},
		"array":                    {`["running"]`, "None", false, "isn't a JSON object"},
		"string":                   {`"running"`, "None", false, "isn't a JSON object"},
		"null":                     {`null`, "None", false, "isn't a JSON object"},
		"not UTF-8":                {"{\"desired_state\":\"\xff\"}", "None", false, "isn't UTF-8"},
		"two byte order marks":     {"\ufeff\ufeff{}", "None", false, "isn't JSON"},
		"too large":                {`{"desired_state":"running","x":"` + strings.Repeat("x", profiles.MaxState) + `"}`, "None", false, "too large"},
		"too many values":          {`{"desired_state":"running","x":[` + strings.Repeat("0,", 10_000) + `0]}`, "None", false, "more than 10000 values"},
		"as large as it may get":   {`{"desired_state":"running","x":"` + strings.Repeat("x", profiles.MaxState-34) + `"}`, "running", true, ""},
		"very deep":                {strings.Repeat(`{"a":`, 20000) + "1" + strings.Repeat("}", 20000), "None", false, "isn't JSON"},
		"gateway_state isn't text": {`{"gateway_state":7}`, "7", false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := profiles.NewVolume(t)
			profiles.Write(t, s, "profiles/p/gateway_state.json", tt.content)
			st, err := s.ReadState("p")
			if got := st.PriorState(); got != tt.prior {
				t.Errorf("Prior() = %q, want %q", got, tt.prior)
			}
			if st.ShouldRun() != tt.start {
				t.Errorf("Start() = %t, want %t", st.ShouldRun(), tt.start)
			}
			switch {
			case tt.warning == "" && err != nil:
				t.Errorf("warning %v, want none", err)
			case tt.warning != "" && err == nil:
				t.Error("no warning")
			case tt.warning != "":
				if !strings.Contains(err.Error(), tt.warning) || !strings.Contains(err.Error(), "profiles/p/gateway_state.json") {
					t.Errorf("warning %q has to say %q and name the file", err, tt.warning)
				}
				if !st.Equal(profiles.State{}) {
					t.Errorf("state %+v beside a warning", st)
				}
			}
		})
	}
}

func TestReadStateFields(t *testing.T) {
	s := profiles.NewVolume(t)
	if st, err := s.ReadState(profiles.Default); err != nil || st != (profiles.State{}) {
		t.Errorf("missing file: %+v, %v", st, err)
	}
	profiles.Write(t, s, "gateway_state.json", strings.Replace(profiles.ObservedState, `"exit_reason":null,"restart_requested":false`,
		`"exit_reason":"asked","restart_requested":true`, 1))
	st, err := s.ReadState(profiles.Default)
	if err != nil {
		t.Fatal(err)
	}
	if st.Written.IsZero() {
		t.Error("Written isn't set")
	}
	want := profiles.State{
		Exists: true, HasGateway: true, Gateway: "running", PID: 4, StartTime: 100022, RestartRequested: true,
		ExitReason: "asked", Written: st.Written.Add(-time.Hour),
	}
	if !st.Equal(want) {
		t.Errorf("state %+v, want %+v", st, want)
	}
	want.PID++
	if st.Equal(want) {
		t.Error("Equal doesn't see another pid")
	}
}

func TestReadStateRefuses(t *testing.T) {
	s := profiles.NewVolume(t)
	outside := filepath.Join(t.TempDir(), "outside.json")
	if err := os.WriteFile(outside, []byte(`{"desired_state":"running"}`), 0o644); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(s.Root(), profiles.StateFile)
	if err := os.Symlink(outside, path); err != nil {
		t.Fatal(err)
	}
	if st, err := s.ReadState(profiles.Default); !errors.Is(err, fsutil.ErrSymlink) || st.ShouldRun() {
		t.Errorf("link: %+v, %v", st, err)
	}
	if err := s.SetDesired(profiles.Default, profiles.Stopped); !errors.Is(err, fsutil.ErrSymlink) {
		t.Errorf("SetDesired through a link: %v", err)
	}
	if data, _ := os.ReadFile(outside); string(data) != `{"desired_state":"running"}` {
		t.Errorf("the link's target is now %q", data)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
	if st, err := s.ReadState(profiles.Default); err == nil || st.Exists {
		t.Errorf("directory: %+v, %v", st, err)
	}
	if _, err := s.ReadState("../.."); !errors.Is(err, profiles.ErrInvalidName) {
		t.Errorf("impossible name: %v", err)
	}
	linkHome := filepath.Join(s.Root(), "profiles", "l")
	if err := os.MkdirAll(filepath.Dir(linkHome), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Dir(outside), linkHome); err != nil {
		t.Fatal(err)
	}
	if err := s.SetDesired("l", profiles.Running); !errors.Is(err, fsutil.ErrSymlink) {
		t.Errorf("home is a link: %v", err)
	}
}

func TestSetDesired(t *testing.T) {
	const now = `"updated_at":1780000000`
	for name, tt := range map[string]struct{ before, want, after string }{
		"no file":       {"", profiles.Running, `{"desired_state":"running",` + now + "}\n"},
		"empty object":  {"{}", profiles.Stopped, `{"desired_state":"stopped",` + now + "}\n"},
		"in its place":  {`{"a":1,"desired_state":"running","b":2}`, profiles.Stopped, `{"a":1,"desired_state":"stopped","b":2,` + now + "}\n"},
		"keeps null":    {`{"desired_state":null}`, profiles.Running, `{"desired_state":"running",` + now + "}\n"},
		"updated_at":    {`{"updated_at":"2026-11-21T00:08:46+00:00","z":0}`, profiles.Running, `{` + now + `,"z":0,"desired_state":"running"}` + "\n"},
		"numbers":       {`{"n":12345678901234567890123,"f":1.50,"e":1E+2}`, profiles.Running, `{"n":12345678901234567890123,"f":1.50,"e":1E+2,"desired_state":"running",` + now + "}\n"},
		"escapes":       {`{"\u00e9\/":"\ud800 \u0041é"}`, profiles.Running, `{"\u00e9\/":"\ud800 \u0041é","desired_state":"running",` + now + "}\n"},
		"spaces inside": {"{ \"a\" : { \"b\" : [ 1 ] } }", profiles.Running, `{"a":{ "b" : [ 1 ] },"desired_state":"running",` + now + "}\n"},
		"repeated key":  {`{"desired_state":"a","x":1,"x":2,"desired_state":"b"}`, profiles.Running, `{"desired_state":"running","x":1,"x":2,` + now + "}\n"},
		"order mark":    {"\ufeff{\"a\":1}", profiles.Running, `{"a":1,"desired_state":"running",` + now + "}\n"},
		"key in escape": {`{"desired\u005fstate":"stopped"}`, profiles.Running, `{"desired\u005fstate":"running",` + now + "}\n"},
	} {
		t.Run(name, func(t *testing.T) {
			s := profiles.NewVolume(t)
			s.SetClock(func() time.Time { return time.Unix(1780000000, 999) })
			if tt.before != "" {
				profiles.Write(t, s, profiles.StateFile, tt.before)
			}
			if err := s.SetDesired(profiles.Default, tt.want); err != nil {
				t.Fatal(err)
			}
			if got := profiles.Read(t, s, profiles.StateFile); got != tt.after {
				t.Errorf("file is %q, want %q", got, tt.after)
			}
			if st, err := s.ReadState(profiles.Default); err != nil || st.Desired != tt.want {
				t.Errorf("state %+v, %v", st, err)
			}
			assertNoTemp(t, s.Root())
		})
	}
}

func assertNoTemp(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".tmp") {
			t.Errorf("temporary file %q is left", e.Name())
		}
	}
}

func TestSetDesiredCorrupt(t *testing.T) {
	for _, content := range []string{"", "{half", "[]", "null", "\xff", strings.Repeat("x", profiles.MaxState+1), `{"x":[` + strings.Repeat("0,", 10_001) + `0]}`} {
		s := profiles.NewVolume(t)
		profiles.Write(t, s, profiles.StateFile, content)
		path := filepath.Join(s.Root(), profiles.StateFile)
		if err := os.Chmod(path, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := s.SetDesired(profiles.Default, profiles.Running); err != nil {
			t.Fatal(err)
		}
		if st, err := s.ReadState(profiles.Default); err != nil || !st.ShouldRun() {
			t.Errorf("state %+v, %v", st, err)
		}
		if got := profiles.Read(t, s, profiles.StateFile+".corrupt"); got != content {
			t.Errorf("kept %d bytes of %d", len(got), len(content))
		}
		assertMode(t, path, 0o600)
	}
}

func assertMode(t *testing.T, path string, want fs.FileMode) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != want {
		t.Errorf("mode of %q is %o, want %o", path, info.Mode().Perm(), want)
	}
}

func TestSetDesiredMode(t *testing.T) {
	s := profiles.NewVolume(t)
	if err := s.SetDesired(profiles.Default, profiles.Running); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(s.Root(), profiles.StateFile)
	assertMode(t, path, 0o644)
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	if err := s.SetDesired(profiles.Default, profiles.Stopped); err != nil {
		t.Fatal(err)
	}
	assertMode(t, path, 0o640)
}

func TestSetDesiredRefuses(t *testing.T) {
	s := profiles.NewVolume(t)
	if err := s.SetDesired("nobody", profiles.Running); !errors.Is(err, profiles.ErrNotExist) {
		t.Errorf("missing profile: %v", err)
	}
	if profiles.Exists(t, s, "profiles") {
		t.Error("a home was made for a missing profile")
	}
	if err := s.SetDesired("../x", profiles.Running); !errors.Is(err, profiles.ErrInvalidName) {
		t.Errorf("impossible name: %v", err)
	}
	if err := s.SetDesired(profiles.Default, "paused"); err == nil || profiles.Exists(t, s, profiles.StateFile) {
		t.Errorf("impossible state: %v", err)
	}
}

// TestSetDesiredAmongOthers checks SetDesired while commands, readers and a gateway use the file.
func TestSetDesiredAmongOthers(t *testing.T) {
	t.Parallel() // This test mostly waits, so it runs beside others.
	s := profiles.NewVolume(t)
	profiles.Write(t, s, profiles.StateFile, profiles.ObservedState)
	path := filepath.Join(s.Root(), profiles.StateFile)
	ctx, cancel := context.WithCancel(t.Context())
	var others, commands sync.WaitGroup
	var reads, rewrites atomic.Int64

	others.Go(func() { // This reader opens the path at each read.
		for ctx.Err() == nil {
			data, err := os.ReadFile(path)
			if err != nil || !json.Valid(data) {
				t.Errorf("torn read: %q, %v", data, err)
				return
			}
			reads.Add(1)
		}
	})
	others.Go(func() { // This goroutine imitates the gateway: it reads, merges, writes a temporary file and renames it.
		for n := 0; ctx.Err() == nil; n++ {
			var state map[string]any
			data, err := os.ReadFile(path)
			if err == nil {
				err = json.Unmarshal(data, &state)
			}
			if err != nil {
				t.Error(err)
				return
			}
			state["active_agents"] = n
			data, _ = json.Marshal(state)
			temp := filepath.Join(s.Root(), ".gateway_state_"+strconv.Itoa(n)+".tmp")
			if err := errors.Join(os.WriteFile(temp, data, 0o644), os.Rename(temp, path)); err != nil {
				t.Error(err)
				return
			}
			rewrites.Add(1)
		}
	})
	for range 3 {
		commands.Go(func() {
			// Repeat until the other goroutines have read and written in between.
			for i := 0; i < 40 || reads.Load() == 0 || rewrites.Load() == 0; i++ {
				if err := s.SetDesired(profiles.Default, []string{profiles.Running, profiles.Stopped}[i%2]); err != nil {
					t.Error(err)
				}
			}
		})
	}
	commands.Wait()
	cancel()
	others.Wait()
	if err := s.SetDesired(profiles.Default, profiles.Running); err != nil {
		t.Fatal(err)
	}
	st, err := s.ReadState(profiles.Default)
	if err != nil || !st.ShouldRun() || st.PID != 4 || st.StartTime != 100022 {
		t.Errorf("in the end %+v, %v", st, err)
	}
	if reads.Load() == 0 || rewrites.Load() == 0 {
		t.Errorf("%d reads and %d rewrites came in between", reads.Load(), rewrites.Load())
	}
	assertNoTemp(t, s.Root())
}

// TestSetDesiredKilled checks that the state file is always complete although its writer is killed
// at any point.
func TestSetDesiredKilled(t *testing.T) {
	s := profiles.NewVolume(t)
	profiles.Write(t, s, profiles.StateFile, profiles.ObservedState)
	for round := range 8 {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), profiles.EnvHelper+"=set", "PROFILES_TEST_HOME="+s.Root())
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewReader(out)
		for range 2 + round*3 {
			if _, err := lines.ReadString('\n'); err != nil {
				t.Fatal(err)
			}
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		st, err := s.ReadState(profiles.Default)
		if err != nil || !profiles.IsIntent(st.Desired) || st.PID != 4 {
			t.Fatalf("after a kill: %+v, %v", st, err)
		}
	}
}

func TestOwnership(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can act as somebody else")
	}
	const uid = 10000
	actor := fsutil.NewActor(fsutil.Identity{UID: uid, GID: uid, Groups: []uint32{uid}})
	if !actor.SwitchesIdentity() {
		t.Skip("this container doesn't let root switch identity")
	}
	s := profiles.Open(t.TempDir(), actor, "")
	if err := errors.Join(os.Chmod(filepath.Dir(s.Root()), 0o755), os.Chown(s.Root(), uid, uid)); err != nil {
		t.Fatal(err)
	}
	if err := manage.Create(s, "p"); err != nil {
		t.Fatal(err)
	}
	if err := s.SetDesired("p", profiles.Running); err != nil {
		t.Fatal(err)
	}
	if err := s.MarkPlannedStop("p", 1, 2); err != nil {
		t.Fatal(err)
	}
	if p := s.Reconcile(profiles.BootOptions{}); len(p.Warnings) != 0 {
		t.Errorf("warnings %v", p.Warnings)
	}
	err := filepath.WalkDir(s.Root(), func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := os.Lstat(path)
		if err == nil && profiles.OwnerOf(info) != uid {
			t.Errorf("%q belongs to %d", path, profiles.OwnerOf(info))
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	if err := manage.Delete(s, "p"); err != nil {
		t.Error(err)
	}
}
