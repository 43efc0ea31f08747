package registry

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"hinit/client"
	"hinit/internal/config"
	"hinit/internal/proc"
	"hinit/supervisor"
)

// Root's SIGHUP must be accepted although an agent requests one reload after the other. The agent's second request must be
// refused during the first.
func TestTheReloadsOfAnAgentKeptRootFromReloading(t *testing.T) {
	agent := supervisor.WithAuthor(t.Context(), &client.Author{UID: 10000})
	var lock sync.Mutex
	if err := lockForReload(agent, &lock); err != nil {
		t.Fatal(err)
	}
	if err := lockForReload(agent, &lock); err == nil {
		t.Error("the agent's second reload is not refused")
	}
	begun, done := make(chan struct{}), make(chan error)
	for _, root := range []context.Context{t.Context(), supervisor.WithAuthor(t.Context(), &client.Author{})} {
		go func() {
			begun <- struct{}{}
			err := lockForReload(root, &lock)
			done <- err
			if err == nil {
				lock.Unlock()
			}
		}()
		<-begun
	}
	runtime.Gosched()
	lock.Unlock()
	for range 2 {
		if err := <-done; err != nil {
			t.Errorf("root's is refused: %v", err)
		}
	}
}

// A reload by an agent must be refused when hinit.yaml has changed since root's last reload. A full disk may cut off root's
// copy, and the first half may be valid but without isolation.
func TestAReloadOfAnAgentReadTheHalfThatRootHadWritten(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root and an agent")
	}
	path := filepath.Join(t.TempDir(), "hinit.yaml")
	t.Setenv("HINIT_CONFIG", path)
	const half, rest = "restart: {factor: 3}\n", "isolation: user\n"
	agent := supervisor.WithAuthor(t.Context(), &client.Author{UID: 10000})
	// The message refused comes before hinit reads the file, the message read after it.
	const refused, read = "root must reload it", "cannot change home while the container runs"
	for _, c := range []struct {
		file, inForce string
		owner         int
		ctx           context.Context
		want          string
	}{
		{half, half + rest, 0, agent, refused},
		{half + rest, half, 0, agent, refused},
		{half, half, 0, agent, read},
		{half, half + rest, 0, t.Context(), read},
		{half, "{}\n", 10000, agent, read},
	} {
		old := time.Now().Add(-time.Hour)
		if err := errors.Join(os.WriteFile(path, []byte(c.file), 0o644), os.Chown(path, c.owner, c.owner), os.Chtimes(path, old, old)); err != nil {
			t.Fatal(err)
		}
		current, err := config.Load(config.Options{Path: path, Content: []byte(c.inForce)})
		if err != nil {
			t.Fatal(err)
		}
		current.Home = "/srv/other"
		r := New(Options{Config: func() *config.Config { return current }})
		if _, err := r.Reload(c.ctx, client.Reload{}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("with %q in a file of uid %d, and %q in force: %v", c.file, c.owner, c.inForce, err)
		}
	}
}

// The plan of a reload must describe each service correctly, before and after the reload.
func TestAPlanNamesTheEffectOnEachService(t *testing.T) {
	unit := func(argv string, grace time.Duration) supervisor.Unit {
		return supervisor.Unit{Spec: proc.Spec{Argv: []string{argv}}, Policy: supervisor.Policy{Grace: grace}}
	}
	on := config.Service{Enabled: true}
	p := ReloadPlan{
		oldUnits: map[string]supervisor.Unit{
			"gone": unit("a", 1), "off": unit("a", 1), "on": unit("a", 1), "runs": unit("a", 1), "down": unit("a", 1), "policy": unit("a", 1),
			"same": unit("a", 1), "drifted": unit("a", 1), "matches": unit("a", 1), "gateway-x": unit("a", 1),
		},
		newUnits: map[string]supervisor.Unit{
			"new": unit("a", 1), "added": unit("a", 1), "off": unit("a", 1), "on": unit("a", 1), "runs": unit("b", 1), "down": unit("b", 1),
			"policy": unit("a", 2), "same": unit("a", 1), "drifted": unit("a", 1), "matches": unit("b", 1), "gateway-x": unit("b", 1),
		},
		oldConfig: &config.Config{Services: map[string]config.Service{"off": on, "runs": on, "down": on}},
		newConfig: &config.Config{Services: map[string]config.Service{"new": on, "on": on, "runs": on, "down": on}},
	}
	now := &supervisor.Snapshot{Services: []*supervisor.Service{
		{Name: "runs", PID: 7, DefinitionChanged: true}, {Name: "drifted", PID: 8, DefinitionChanged: true}, {Name: "matches", PID: 9}, {Name: "gateway-x", PID: 10, DefinitionChanged: true},
	}}
	for done, want := range map[bool][]string{
		false: {
			"+ added would be added, it is not enabled", "~ down would change, in force when it starts", "~ drifted changed before, restart to apply",
			"~ gateway-x would change, restart to apply", "- gone would be stopped, it is not in the file any more", "~ matches would change, restart to apply",
			"+ new would be started", "- off would be stopped, it is not enabled any more", "+ on would be started, it is enabled now",
			"~ policy would change, in force at once", "~ runs would change, restart to apply",
		},
		true: {
			"+ added added, it is not enabled", "~ down changed, in force when it starts", "~ drifted changed before, restart to apply",
			"~ gateway-x changed, restart to apply", "- gone stopped, it is not in the file any more", "~ matches changed to what runs",
			"+ new started", "- off stopped, it is not enabled any more", "+ on started, it is enabled now",
			"~ policy changed, in force at once", "~ runs changed, restart to apply",
		},
	} {
		var got []string
		for _, s := range p.Steps(now, done) {
			got = append(got, s.Op+" "+s.Service+" "+s.Effect)
		}
		if !slices.Equal(got, want) {
			t.Errorf("done %v:\n got %q\nwant %q", done, got, want)
		}
	}
}
