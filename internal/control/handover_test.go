package control

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"hinit/client"
	"hinit/client/dial"
	"hinit/internal/testkit"
	"hinit/supervisor"
)

// reexecBackend is a Backend whose Reexec succeeds or returns err.
type reexecBackend struct {
	*fakeBackend
	err error
}

func (c reexecBackend) Reexec(_ context.Context, binary string) (int, error) {
	if c.err != nil {
		return 0, c.err
	}
	c.update(func() {
		if binary == "/broken" {
			c.initStatus.ReexecError = "it does not work"
			return
		}
		c.initStatus.Generation++
	})
	return 1, nil
}

func (c reexecBackend) Init() client.Init {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.initStatus
}

func TestSocketGoesOnInAnotherImage(t *testing.T) {
	for name, socket := range map[string]string{"path": filepath.Join(t.TempDir(), "s"), "abstract": "@hinit-test-" + t.Name()} {
		t.Run(name, func(t *testing.T) {
			l, err := Listen(socket)
			if err != nil {
				t.Fatal(err)
			}
			core := newFakeBackend(newGateway("a", supervisor.Stopping, setUnwanted), newGateway("b", supervisor.Stopping))
			old := newServer(core, readableByAll)
			served := make(chan error, 1)
			go func() { served <- old.Serve(l) }()
			cl := dial.New(socket)
			if _, err := cl.Health(t.Context()); err != nil {
				t.Fatal(err)
			}
			stopped, restarted := make(chan error, 1), make(chan error, 1)
			go func() { _, err := cl.Stop(t.Context(), "a", client.WaitOptions{Wait: true}); stopped <- err }()
			go func() { _, err := cl.Restart(t.Context(), "b", client.WaitOptions{Wait: true}); restarted <- err }()
			testkit.Until(t, "both wait", func() bool { return len(core.receivedCommands()) == len("stop gateway-a, restart gateway-b") })

			s, err := Detach(l)
			if err != nil {
				t.Fatal(err)
			}
			if err := old.CloseForReexec(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := <-served; err != nil {
				t.Fatal(err)
			}
			if err := <-restarted; !errors.Is(err, client.ErrReplaced) {
				t.Errorf("who waited for a restart is told %v", err)
			}
			asked := make(chan error, 1)
			go func() { _, err := cl.Health(t.Context()); asked <- err }()

			next, err := Attach(s)
			if err != nil {
				t.Fatal(err)
			}
			core.setServices(newGateway("a", supervisor.Down, setUnwanted))
			server := newServer(core, readableByAll)
			go func() { served <- server.Serve(next) }()
			if err := <-asked; err != nil {
				t.Errorf("who asked meanwhile is told %v", err)
			}
			if err := <-stopped; err != nil {
				t.Errorf("who waited for a stop is told %v", err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
			defer cancel()
			if err := errors.Join(server.Close(ctx), <-served); err != nil {
				t.Error(err)
			}
			if _, err := os.Lstat(socket); err == nil {
				t.Error("the socket file is left behind")
			}
		})
	}
}

func TestReexecIsForRootAndTellsWhatCameOfIt(t *testing.T) {
	core := reexecBackend{newFakeBackend(), nil}
	core.initStatus.Generation = 1
	s := serve(t, core, readableByAll)
	info, err := dial.New(s.socket).Reexec(t.Context(), "")
	if err != nil || info.Generation != 2 {
		t.Errorf("got image %d, %v", info.Generation, err)
	}
	core.update(func() { core.initStatus.Generation = 1 })
	if _, err := dial.New(s.socket).Reexec(t.Context(), "/broken"); err == nil || err.Error() != "cannot re-execute hinit: it does not work" {
		t.Errorf("got %v", err)
	}
	p := accessPolicy{ownUID: 0, agentUID: 1000, othersMayRead: true}
	for uid, may := range map[uint32]bool{0: true, 1000: false, 2000: false} {
		if got := p.check(peer{uid: uid}, mayReexec) == nil; got != may {
			t.Errorf("uid %d may replace hinit: %v", uid, got)
		}
	}
	if err := (accessPolicy{ownUID: 1000, agentUID: 1000}).check(peer{uid: 1000}, mayReexec); err != nil {
		t.Errorf("the user hinit runs as may not replace it: %v", err)
	}
}

func TestTheAgentMayNotEndTheContainerOfRoot(t *testing.T) {
	p := accessPolicy{ownUID: 0, agentUID: 1000, othersMayRead: true}
	for uid, may := range map[uint32]bool{0: true, 1000: false, 2000: false} {
		err := p.check(peer{uid: uid}, mayShutDown)
		if (err == nil) != may || err != nil && err.Message != fmt.Sprintf("uid %d may not end the container; root may", uid) {
			t.Errorf("uid %d may end the container: %v", uid, err)
		}
	}
	if err := (accessPolicy{ownUID: 1000, agentUID: 1000}).check(peer{uid: 1000}, mayShutDown); err != nil {
		t.Errorf("the user that PID 1 is may not end it: %v", err)
	}
}

// The agent must not be allowed to reload without the configuration file. While root replaces the file, such a reload would end
// limits and isolation.
func TestTheAgentReloadedWithoutTheFile(t *testing.T) {
	s := &Server{policy: accessPolicy{ownUID: 0, agentUID: 1000, othersMayRead: true}}
	_, err := postReload(s, &request{client: peer{uid: 1000}}, client.Reload{Force: true})
	if err == nil || !errors.Is(err, client.ErrNotAllowed) || err.Error() != "uid 1000 may not reload without a configuration file; root may" {
		t.Errorf("it is told %v", err)
	}
}
