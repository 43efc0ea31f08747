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

// replacedCore is a Backend whose Reexec succeeds or returns err.
type replacedCore struct {
	*fakeCore
	err error
}

func (c replacedCore) Reexec(_ context.Context, binary string) (int, error) {
	if c.err != nil {
		return 0, c.err
	}
	c.change(func() {
		if binary == "/broken" {
			c.info.ReexecError = "it does not work"
			return
		}
		c.info.Generation++
	})
	return 1, nil
}

func (c replacedCore) Init() client.Init {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.info
}

func TestSocketGoesOnInAnotherImage(t *testing.T) {
	for name, socket := range map[string]string{"path": filepath.Join(t.TempDir(), "s"), "abstract": "@hinit-test-" + t.Name()} {
		t.Run(name, func(t *testing.T) {
			l, err := Listen(socket)
			if err != nil {
				t.Fatal(err)
			}
			core := newFakeCore(gateway("a", supervisor.Stopping, unwanted), gateway("b", supervisor.Stopping))
			old := newServer(core, everyone)
			served := make(chan error, 1)
			go func() { served <- old.Serve(l) }()
			cl := dial.New(socket)
			if _, err := cl.Health(t.Context()); err != nil {
				t.Fatal(err)
			}
			stopped, restarted := make(chan error, 1), make(chan error, 1)
			go func() { _, err := cl.Stop(t.Context(), "a", client.Wait{Wait: true}); stopped <- err }()
			go func() { _, err := cl.Restart(t.Context(), "b", client.Wait{Wait: true}); restarted <- err }()
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
			core.set(gateway("a", supervisor.Down, unwanted))
			server := newServer(core, everyone)
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
	core := replacedCore{newFakeCore(), nil}
	core.info.Generation = 1
	s := serve(t, core, everyone)
	info, err := dial.New(s.socket).Reexec(t.Context(), "")
	if err != nil || info.Generation != 2 {
		t.Errorf("got image %d, %v", info.Generation, err)
	}
	core.change(func() { core.info.Generation = 1 })
	if _, err := dial.New(s.socket).Reexec(t.Context(), "/broken"); err == nil || err.Error() != "cannot re-execute hinit: it does not work" {
		t.Errorf("got %v", err)
	}
	p := policy{ownUID: 0, agent: 1000, othersMayRead: true}
	for uid, may := range map[uint32]bool{0: true, 1000: false, 2000: false} {
		if got := p.check(peer{uid: uid}, mayReplace) == nil; got != may {
			t.Errorf("uid %d may replace hinit: %v", uid, got)
		}
	}
	if err := (policy{ownUID: 1000, agent: 1000}).check(peer{uid: 1000}, mayReplace); err != nil {
		t.Errorf("the user hinit runs as may not replace it: %v", err)
	}
}

func TestTheAgentMayNotEndTheContainerOfRoot(t *testing.T) {
	p := policy{ownUID: 0, agent: 1000, othersMayRead: true}
	for uid, may := range map[uint32]bool{0: true, 1000: false, 2000: false} {
		err := p.check(peer{uid: uid}, mayEnd)
		if (err == nil) != may || err != nil && err.Message != fmt.Sprintf("uid %d may not end the container; root may", uid) {
			t.Errorf("uid %d may end the container: %v", uid, err)
		}
	}
	if err := (policy{ownUID: 1000, agent: 1000}).check(peer{uid: 1000}, mayEnd); err != nil {
		t.Errorf("the user that PID 1 is may not end it: %v", err)
	}
}

// The agent must not be allowed to reload without the configuration file. While root replaces the file, such a reload would end
// limits and isolation.
func TestTheAgentReloadedWithoutTheFile(t *testing.T) {
	s := &Server{policy: policy{ownUID: 0, agent: 1000, othersMayRead: true}}
	_, err := postReload(s, &request{client: peer{uid: 1000}}, client.Reload{Force: true})
	if err == nil || !errors.Is(err, client.ErrNotAllowed) || err.Error() != "uid 1000 may not reload without a configuration file; root may" {
		t.Errorf("it is told %v", err)
	}
}
