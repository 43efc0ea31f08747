package volume

import (
	"context"
	"errors"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"hinit/internal/boot"

	"golang.org/x/sys/unix"

	"hinit/internal/fsutil"
	"hinit/internal/testkit"
)

type fakeRunner struct {
	ran   []string
	codes map[string]int
	errs  map[string]error
	hangs string
}

func (f *fakeRunner) RunHook(ctx context.Context, h boot.Hook) (int, error) {
	f.ran = append(f.ran, h.Name)
	if h.Name == f.hangs {
		if h.Timeout > 0 {
			return -1, errors.New("it took longer than " + h.Timeout.String())
		}
		<-ctx.Done()
		return -1, context.Cause(ctx)
	}
	return f.codes[h.Name], f.errs[h.Name]
}

func TestHooks(t *testing.T) {
	file := t.TempDir() + "/script.py"
	writeFile(t, file, "")
	hook := func(name string, edit func(*boot.Hook)) boot.Hook {
		h := boot.Hook{Name: name, Command: []string{"/x/" + name}, Timeout: time.Minute}
		if edit != nil {
			edit(&h)
		}
		return h
	}
	for _, tt := range []struct {
		name   string
		hooks  []boot.Hook
		runner fakeRunner
		strict bool
		ran    []string
		says   []string
		err    string
	}{
		{name: "all well", hooks: []boot.Hook{hook("a", nil), hook("b", nil)}, ran: []string{"a", "b"}},
		{name: "none"},
		{
			name: "only where the file is", ran: []string{"a"},
			hooks: []boot.Hook{hook("a", func(h *boot.Hook) { h.IfExists = file }), hook("b", func(h *boot.Hook) { h.IfExists = file + "x" })},
		},
		{
			name: "failure", hooks: []boot.Hook{hook("docker_config_migrate.py", nil), hook("b", nil)}, runner: fakeRunner{codes: map[string]int{"docker_config_migrate.py": 1}},
			ran: []string{"docker_config_migrate.py", "b"}, says: []string{"[stage2] Warning: docker_config_migrate.py failed; continuing"},
		},
		{
			name: "cannot start", hooks: []boot.Hook{hook("a", nil)}, runner: fakeRunner{errs: map[string]error{"a": errors.New("no such file")}},
			ran: []string{"a"}, says: []string{"[stage2] Warning: a: no such file", "[stage2] Warning: a failed; continuing"},
		},
		{
			name: "timeout", hooks: []boot.Hook{hook("a", func(h *boot.Hook) { h.Timeout = time.Millisecond }), hook("b", nil)}, runner: fakeRunner{hangs: "a"},
			ran: []string{"a", "b"}, says: []string{"[stage2] Warning: a: it took longer than 1ms", "[stage2] Warning: a failed; continuing"},
		},
		{
			name: "required", hooks: []boot.Hook{hook("a", func(h *boot.Hook) { h.Required = true }), hook("b", nil)}, runner: fakeRunner{codes: map[string]int{"a": 3}},
			ran: []string{"a"}, says: []string{"[stage2] Warning: a failed"}, err: "a required boot step has failed: a: exit code 3",
		},
		{
			name: "strict", strict: true, hooks: []boot.Hook{hook("a", nil), hook("b", nil)}, runner: fakeRunner{codes: map[string]int{"a": 3}},
			ran: []string{"a"}, says: []string{"[stage2] Warning: a failed"}, err: "a required boot step has failed: a: exit code 3",
		},
		{
			name: "scripts", hooks: []boot.Hook{hook("a", func(h *boot.Hook) { h.ContInit = true }), hook("b", func(h *boot.Hook) { h.ContInit = true })},
			runner: fakeRunner{codes: map[string]int{"b": 7}}, ran: []string{"a", "b"},
			says: []string{
				"cont-init: info: running /x/a", "cont-init: info: /x/a exited 0", "cont-init: info: running /x/b", "cont-init: info: /x/b exited 7",
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			messages := &recorder{}
			phases, err := RunHooks(context.Background(), tt.hooks, &tt.runner, nil, tt.strict, messages.say)
			if !reflect.DeepEqual(tt.runner.ran, tt.ran) {
				t.Errorf("ran %q", tt.runner.ran)
			}
			if got := messages.text(); got != strings.Join(tt.says, "\n") {
				t.Errorf("said\n%s\nwant\n%s", got, strings.Join(tt.says, "\n"))
			}
			if tt.err == "" && err != nil || tt.err != "" && (err == nil || err.Error() != tt.err || !errors.Is(err, ErrHook)) {
				t.Errorf("error is %v", err)
			}
			if len(phases) != len(tt.ran) {
				t.Errorf("phases are %+v", phases)
			}
		})
	}
}

func TestHooksEndWithTheContainer(t *testing.T) {
	ctx, cancel := context.WithCancelCause(context.Background())
	stop := errors.New("the container stops")
	cancel(stop)
	r := &fakeRunner{hangs: "a"}
	_, err := RunHooks(ctx, []boot.Hook{{Name: "a", Command: []string{"a"}}, {Name: "b", Command: []string{"b"}}}, r, nil, false, (&recorder{}).say)
	if !errors.Is(err, stop) || len(r.ran) != 1 {
		t.Errorf("ran %q: %v", r.ran, err)
	}
}

func TestRebootstrapHook(t *testing.T) {
	home := t.TempDir()
	o := Options{Options: boot.Options{Home: home, Env: environ(map[string]string{"HERMES_AUTH_JSON_REBOOTSTRAP": "{}"})}, Image: ImagePaths{Install: "/i"}}
	if h, ok := RebootstrapHook(o); ok {
		t.Errorf("without credentials: %+v", h)
	}
	writeFile(t, home+"/auth.json", "{}")
	h, ok := RebootstrapHook(o)
	if want := []string{"/i/.venv/bin/python", "/i/scripts/docker_rebootstrap_nous_session.py", home + "/auth.json"}; !ok || !reflect.DeepEqual(h.Command, want) {
		t.Errorf("got %+v", h)
	}
	o.Env = environ(nil)
	if _, ok := RebootstrapHook(o); ok {
		t.Error("nobody asked for it")
	}
}

func TestContInit(t *testing.T) {
	testkit.NeedRoot(t)
	dir := tempDir(t) + "/cont-init.d"
	for name, mode := range map[string]os.FileMode{
		"01-hermes-setup": 0o755, "015-supervise-perms": 0o755, "02-reconcile-profiles": 0o755, "10-b": 0o755, "9-a": 0o700, "20-data": 0o644,
		"30-open": 0o757, "40-agent": 0o755, "50-group": 0o775,
	} {
		writeFile(t, dir+"/"+name, "#!/bin/sh\n")
		must(t, os.Chmod(dir+"/"+name, mode))
	}
	must(t, os.Chown(dir+"/40-agent", agentUID, 0))
	must(t, os.Chown(dir+"/50-group", 0, agentGID))
	must(t, os.Mkdir(dir+"/60-dir", 0o755))
	must(t, os.Symlink("nowhere", dir+"/70-dangling"))
	must(t, os.Symlink("10-b", dir+"/80-link"))
	hooks, lines := ContInitHooks(dir, agentActor())
	var names []string
	for _, h := range hooks {
		names = append(names, strings.TrimPrefix(h.Name, dir+"/"))
		if h.User != "root" || len(h.Command) != 1 || !h.ContInit || h.Timeout <= 0 {
			t.Errorf("hook is %+v", h)
		}
	}
	if got := strings.Join(names, " "); got != "10-b 80-link 9-a" {
		t.Errorf("hooks are %s", got)
	}
	var text []string
	for _, l := range lines {
		text = append(text, strings.ReplaceAll(l.Text, dir+"/", ""))
	}
	want := `cont-init: info: skipping 01-hermes-setup: hinit does its work
cont-init: info: skipping 015-supervise-perms: hinit does its work
cont-init: info: skipping 02-reconcile-profiles: hinit does its work
cont-init: warning: skipping 20-data: it cannot be executed; chmod +x it
cont-init: warning: skipping 30-open: the agent's user can write it, and root would run it; give it to root or mount it read-only
cont-init: warning: skipping 40-agent: the agent's user can write it, and root would run it; give it to root or mount it read-only
cont-init: warning: skipping 50-group: the agent's user can write it, and root would run it; give it to root or mount it read-only
cont-init: warning: skipping 70-dangling: no such file or directory`
	if got := strings.Join(text, "\n"); got != want {
		t.Errorf("lines\n%s\nwant\n%s", got, want)
	}
	if hooks, _ := ContInitHooks(dir, fsutil.ProcessActor()); len(hooks) != 6 {
		t.Errorf("without another user to be protected from: %+v", hooks)
	}

	must(t, os.Chmod(dir, 0o777))
	if hooks, lines := ContInitHooks(dir, agentActor()); len(hooks) != 0 || len(lines) != 1 {
		t.Errorf("an open directory: %+v, %+v", hooks, lines)
	}
	if hooks, lines := ContInitHooks(dir+"x", agentActor()); len(hooks)+len(lines) != 0 {
		t.Errorf("a missing directory: %+v, %+v", hooks, lines)
	}
	if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err == nil {
		defer unix.Unmount(dir, unix.MNT_DETACH)
		must(t, unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""))
		if hooks, _ := ContInitHooks(dir, agentActor()); len(hooks) != 6 {
			t.Errorf("read-only: %+v", hooks)
		}
	}
}
