package promises_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"hinit/client"
)

// sentCommand is one command of one of many clients.
type sentCommand struct {
	verb           string
	sent, answered time.Time
	err            error
}

// TestFiftyClientsAtOnce lets many clients start and stop the same services. No service may have
// two processes, and reported successes must be true.
func TestFiftyClientsAtOnce(t *testing.T) {
	parallelInTurn(t)
	requireRoot(t)
	b := newTestContainer(t, setup{config: quick})
	names := b.profiles(4, sleeper)
	b.boot()
	commands := map[string][]sentCommand{}
	var mu sync.Mutex
	var clients sync.WaitGroup
	stop := make(chan struct{})
	watched := make(chan error, 1)
	go func() { watched <- b.checkNoDuplicates(names, stop) }()
	for i := range 50 {
		random := rand.New(rand.NewPCG(*seed, uint64(i)))
		clients.Go(func() {
			for range shortOrFull(10, 200) {
				name := names[random.IntN(len(names))]
				g := sentCommand{verb: []string{"start", "stop", "restart"}[random.IntN(3)], sent: time.Now()}
				g.err = b.sendCommand(g.verb, name)
				if g.answered = time.Now(); isLate(g.err) {
					g.answered = g.answered.Add(time.Hour) // The command is accepted, and recorded later.
				}
				mu.Lock()
				commands[name] = append(commands[name], g)
				mu.Unlock()
			}
		})
	}
	clients.Wait()
	close(stop)
	b.check(<-watched)
	for _, name := range names {
		allowed := lastCommands(commands[name])
		within(t, patience, func() error { return b.checkRestored(name, allowed...) })
		within(t, patience, func() error { return b.checkOneProcess(name) })
		for _, g := range commands[name] {
			// A newer command may have superseded this one.
			if g.err != nil && !isLate(g.err) && !strings.Contains(g.err.Error(), "superseded: ") {
				t.Errorf("%s %s: %v", g.verb, name, g.err)
			}
		}
		sheet.add("concurrent commands", len(commands[name]))
	}
	// From here on, success means that the service has reached the state.
	for _, verb := range []string{"start", "restart", "stop", "start", "stop"} {
		for _, name := range names {
			clients.Go(func() {
				if err := b.commandAndAwait(verb, name); err != nil {
					t.Errorf("%s %s: %v", verb, name, err)
				} else if err := b.checkOneProcess(name); err != nil {
					t.Errorf("after %s: %v", verb, err)
				}
			})
		}
		clients.Wait()
	}
	// A command that can't take effect must not succeed.
	b.profile("crasher", "exit 3\n")
	b.check(b.booted())
	for _, verb := range []string{"start", "restart"} {
		if b.commandAndAwait(verb, "crasher") == nil && b.longestRun("gateway-crasher") < time.Second {
			t.Errorf("the %s of a service that ends at once is said to have worked", verb)
		}
	}
}

// longestRun returns the length of a service's longest life.
func (b *testContainer) longestRun(service string) time.Duration {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var up time.Time
	var longest time.Duration
	b.check(b.client.Events(ctx, client.EventOptions{}, func(e client.Event) error {
		switch {
		case e.Service != service || e.FromState == e.ToState:
		case e.ToState == client.StateUp:
			up = e.At
		case e.FromState == client.StateUp:
			longest = max(longest, e.At.Sub(up))
		}
		return nil
	}))
	return longest
}

// isLate reports whether a command was accepted but not carried out in time.
func isLate(err error) bool {
	clientErr := (*client.Error)(nil)
	return errors.As(err, &clientErr) && clientErr.Kind == client.KindTimeout
}

// lastCommands returns the possible final intents: commands that were answered after the last one was
// sent.
func lastCommands(commands []sentCommand) []string {
	var last time.Time
	for _, g := range commands {
		if g.sent.After(last) {
			last = g.sent
		}
	}
	var out []string
	for _, g := range commands {
		want := map[bool]string{true: "stopped", false: "running"}[g.verb == "stop"]
		if !g.answered.Before(last) && !slices.Contains(out, want) {
			out = append(out, want)
		}
	}
	return out
}

// checkOneProcess returns an error unless a service has exactly one process, or none if it must be down.
func (b *testContainer) checkOneProcess(name string) error {
	s, err := b.service(name)
	if err != nil {
		return err
	}
	want := map[string]int{client.WantUp: 1, client.WantDown: 0}[s.Want]
	if p := b.processesOf("gateway-" + name); len(p) != want {
		return fmt.Errorf("%s, wanted %s, has the processes %+v", name, s.Want, p)
	}
	return nil
}

// checkNoDuplicates returns an error if it sees two processes of one service.
func (b *testContainer) checkNoDuplicates(names []string, stop <-chan struct{}) error {
	for {
		select {
		case <-stop:
			return nil
		case <-time.After(50 * time.Millisecond):
		}
		for _, name := range names {
			// The process list is not atomic. Only processes in two consecutive readings existed at the same
			// time.
			first := b.processesOf("gateway-" + name)
			if len(first) < 2 {
				continue
			}
			if p := slices.DeleteFunc(b.processesOf("gateway-"+name), func(p process) bool {
				return !slices.ContainsFunc(first, func(f process) bool { return f.pid == p.pid })
			}); len(p) > 1 {
				return fmt.Errorf("%s has the processes %+v", name, p)
			}
		}
	}
}
