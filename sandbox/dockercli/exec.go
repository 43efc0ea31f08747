package dockercli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"hinit/sandbox"
)

// goneTexts are what the agent takes for a lost container, wherever in the output of a command that has failed (contract, section 14).
var goneTexts = [][]byte{[]byte("No such container"), []byte("no such container"), []byte("is not running")}

// exec runs a command. A command that the agent repeats because its output looked as if the container were gone is not run again: the
// agent gets the answer that the command has given.
func (p *Personality) exec(ctx context.Context, c *Exec, from Caller) int {
	box, err := p.adopt(ctx, c.Container)
	if err != nil {
		return p.notBegun(ctx, c.Container, err, from)
	}
	key := sum(slices.Concat([]string{box.ID()}, c.Env, []string{""}, c.Argv))
	var before ending
	var asked probe
	if p.recall(from, "ending", key, &before) && p.recall(from, "probe", labelKey(box.Labels()), &asked) && asked.At.After(before.At) {
		p.forget(from, "ending", key)
		_, _ = from.Stdout.Write(before.Output) // a caller that is gone needs no answer
		return before.Code
	}
	req := sandbox.Request{Argv: c.Argv, Env: environment(c.Env, from), Timeout: -1}
	seen := &recorder{}
	req.Stdout, req.Stderr = seen.before(from.Stdout), seen.before(from.Stderr)
	if c.Stdin {
		req.Stdin = from.Stdin
	}
	result, err := box.Exec(ctx, req)
	switch {
	case errors.Is(err, sandbox.ErrGone), errors.Is(err, sandbox.ErrClosed):
		p.adopted.Delete(c.Container)
		return p.notBegun(ctx, c.Container, err, from)
	case errors.Is(err, sandbox.ErrLost):
		// Not in the words that make the agent run it again.
		p.adopted.Delete(c.Container)
		fmt.Fprintf(from.Stderr, "hinit: %s\n", unlike(err.Error()))
		return exitKilled
	case err != nil:
		return p.notBegun(ctx, c.Container, err, from)
	}
	if result.Code != 0 && seen.looksGone() {
		p.remember(from, "ending", key, ending{time.Now(), result.Code, seen.output()})
	}
	return result.Code
}

// adopt returns the sandbox of a running container.
func (p *Personality) adopt(ctx context.Context, ref string) (*sandbox.Sandbox, error) {
	if box, ok := p.adopted.Load(ref); ok {
		return box.(*sandbox.Sandbox), nil
	}
	container, err := p.Engine.Inspect(ctx, ref)
	if err != nil {
		return nil, err
	}
	if err := stateError(container, ref); err != nil {
		return nil, err
	}
	box, err := p.Manager.Adopt(ctx, container.ID)
	if err == nil {
		p.adopted.Store(ref, box)
	}
	return box, err
}

// Forget lets go of every sandbox that was used. They go on.
func (p *Personality) Forget() {
	p.adopted.Range(func(ref, box any) bool {
		p.adopted.Delete(ref)
		_ = box.(*sandbox.Sandbox).Cleanup(false) // of an adopted one: nothing is removed
		return true
	})
}

// stateError is what the docker command says of a container in which nothing can be run.
func stateError(c sandbox.Container, ref string) error {
	switch c.State {
	case sandbox.Running:
		return nil
	case sandbox.Paused:
		return errors.New(fromDaemon + "Container " + ref + " is paused, unpause the container before exec")
	case sandbox.Restarting:
		return errors.New(fromDaemon + "Container " + c.ID + " is restarting, wait until the container is running")
	default:
		return errors.New(fromDaemon + "Container " + c.ID + " is not running")
	}
}

// notBegun prints why a command was not run. What the engine says of the container now counts more than what was in the way.
func (p *Personality) notBegun(ctx context.Context, ref string, why error, from Caller) int {
	p.adopted.Delete(ref)
	if container, err := p.Engine.Inspect(ctx, ref); err != nil {
		why = err
	} else if err := stateError(container, ref); err != nil {
		why = err
	} else if errors.Is(why, sandbox.ErrGone) {
		why = fmt.Errorf("the container was replaced by another of its name: %w", errors.ErrUnsupported)
	}
	code := exitFailed
	if errors.Is(why, sandbox.ErrRefused) {
		code = exitCannot
	}
	return from.fail(code, why, ref)
}

// environment makes the values of -e.
func environment(list []string, from Caller) map[string]string {
	if len(list) == 0 {
		return nil
	}
	env := make(map[string]string, len(list))
	for _, e := range list {
		name, value, has := strings.Cut(e, "=")
		if !has {
			if value, has = from.Env[name]; !has {
				continue
			}
		}
		env[name] = value
	}
	return env
}

// unlike takes the texts out of a message that make the agent run a command again.
func unlike(text string) string {
	return strings.NewReplacer("o such container", "o container of that name", "is not running", "does not run").Replace(text)
}

// recorder keeps the end of what a command writes, on either stream.
type recorder struct {
	mu   sync.Mutex
	text []byte
	cut  bool
	gone bool // a text of goneTexts was in what is not kept any more
}

// recordMost is how much of a command's output is kept. The agent itself keeps 50,000 characters.
const recordMost = 1 << 20

type recorded struct {
	r  *recorder
	to interface{ Write([]byte) (int, error) }
}

func (r *recorder) before(to interface{ Write([]byte) (int, error) }) *recorded {
	return &recorded{r, to}
}

func (w *recorded) Write(data []byte) (int, error) {
	w.r.keep(data)
	return w.to.Write(data)
}

func (r *recorder) keep(data []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.text = append(r.text, data...)
	if len(r.text) > 2*recordMost {
		r.gone = r.gone || containsAny(r.text)
		r.text = slices.Clone(r.text[len(r.text)-recordMost:])
		r.cut = true
	}
}

func (r *recorder) looksGone() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.gone || containsAny(r.text)
}

func (r *recorder) output() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cut {
		return append([]byte("[hinit kept only the end of this output]\n"), r.text...)
	}
	return r.text
}

func containsAny(text []byte) bool {
	return slices.ContainsFunc(goneTexts, func(t []byte) bool { return bytes.Contains(text, t) })
}
