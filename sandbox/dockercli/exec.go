package dockercli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"hinit/sandbox"
)

// containerGoneTexts are texts that make the agent believe that its container is lost. It looks for them anywhere in the output
// of a failed command, even if the command itself printed them.
var containerGoneTexts = [][]byte{[]byte("No such container"), []byte("no such container"), []byte("is not running")}

// exec executes docker exec. The agent repeats a failed command if its output contains one of containerGoneTexts, although the
// first run may have had an effect. exec does not run such a command a second time: it prints the output of the first run again.
func (p *Emulator) exec(ctx context.Context, c *Call, from Caller) int {
	ref, argv := c.Words[0], c.Words[1:]
	box, err := p.Adopt(ctx, ref)
	if err != nil {
		return p.reportNotStarted(ctx, ref, err, from)
	}
	key := toJSON([][]string{{box.ID(), c.Spec.Dir}, c.Env, argv})
	var before failedCommand
	var listing psListing
	if p.loadForCaller(from, "ending", key, &before) && p.loadForCaller(from, "probe", toJSON(box.Labels()), &listing) && listing.At.After(before.At) {
		p.StoreCached("ending "+from.Process+" "+key, nil)
		_, _ = from.Out.Write(before.Output) // A write fails only if the caller is gone.
		return before.Code
	}
	req := sandbox.Request{Argv: argv, Dir: c.Spec.Dir, Env: sandbox.FlagVariables(c.Env, from.Env), Timeout: -1}
	seen := &outputRecorder{}
	req.Stdout, req.Stderr = io.MultiWriter(seen, from.Out), io.MultiWriter(seen, from.Err)
	if c.Stdin {
		req.Stdin = from.In
	}
	result, err := box.Exec(ctx, req)
	if errors.Is(err, sandbox.ErrClosed) { // Another command has stopped or started the container, so find it again.
		if box, err = p.Adopt(ctx, ref); err == nil {
			result, err = box.Exec(ctx, req)
		}
	}
	switch {
	case errors.Is(err, sandbox.ErrLost):
		// Don't print the engine's text, which would make the agent run the command again.
		p.ForgetAdopted(box.ID())
		fmt.Fprintf(from.Err, "hinit: %s\n", withoutGoneTexts(err.Error()))
		return exitKilled
	case err != nil:
		return p.reportNotStarted(ctx, ref, err, from)
	}
	if output, gone := seen.output(); result.Code != 0 && gone {
		p.storeForCaller(from, "ending", key, failedCommand{time.Now(), result.Code, output})
	}
	return result.Code
}

// stateError returns the docker command's error for a container that can't run commands in its current state.
func stateError(c sandbox.Container, ref string) error {
	switch c.State {
	case sandbox.Running:
		return nil
	case sandbox.Paused:
		return errors.New(daemonPrefix + "Container " + ref + " is paused, unpause the container before exec")
	case sandbox.Restarting:
		return errors.New(daemonPrefix + "Container " + c.ID + " is restarting, wait until the container is running")
	default:
		text := daemonPrefix + "Container " + c.ID + " is not running"
		if c.Reason != "" {
			text += " (" + c.Reason + ")"
		}
		return errors.New(text)
	}
}

// reportNotStarted prints the error for a command that was not started, and returns the exit code. The error describes the
// container's state if that explains the failure. Otherwise it is why.
func (p *Emulator) reportNotStarted(ctx context.Context, ref string, why error, from Caller) int {
	p.ForgetAdopted(ref)
	if container, err := p.Engine().Inspect(ctx, ref); err != nil {
		why = err
	} else if err := stateError(container, ref); err != nil {
		why = err
	} else if errors.Is(why, sandbox.ErrGone) {
		why = fmt.Errorf("the container was replaced by another of its name: %w", errors.ErrUnsupported)
	}
	if errors.Is(why, sandbox.ErrRefused) {
		return from.printError(exitNotExecutable, why, ref)
	}
	return from.printError(exitFailed, why, ref)
}

// withoutGoneTexts replaces the phrases of containerGoneTexts in an error message. Otherwise the agent would think that its
// container is lost, and run the command again.
func withoutGoneTexts(text string) string {
	return strings.NewReplacer("o such container", "o container of that name", "is not running", "does not run").Replace(text)
}

// outputRecorder keeps the end of a command's output, and notes whether one of containerGoneTexts occurred anywhere in it.
type outputRecorder struct {
	mu           sync.Mutex
	recentOutput []byte
	written      int64 // Total number of bytes that the command has written.
	foundGone    bool
}

// maxRecorded is how many bytes of output a recorder keeps. The agent itself keeps 50,000 characters.
const maxRecorded = 256 << 10

// longestGoneText is the length of the longest of containerGoneTexts, which may be split between two writes.
const longestGoneText = 17

// Write never fails.
func (r *outputRecorder) Write(data []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.written += int64(len(data))
	searched := max(0, len(r.recentOutput)-longestGoneText)
	r.recentOutput = append(r.recentOutput, data...)
	r.foundGone = r.foundGone || slices.ContainsFunc(containerGoneTexts, func(t []byte) bool { return bytes.Contains(r.recentOutput[searched:], t) })
	if len(r.recentOutput) > 2*maxRecorded { // Cutting copies the data, so cut seldom.
		r.recentOutput = append(r.recentOutput[:0], r.recentOutput[len(r.recentOutput)-maxRecorded:]...)
	}
	return len(data), nil
}

// output returns the end of the output. gone is true if one of containerGoneTexts occurred anywhere in the output.
func (r *outputRecorder) output() (end []byte, gone bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	end = r.recentOutput[max(0, len(r.recentOutput)-maxRecorded):]
	if r.written > int64(len(end)) {
		end = append([]byte("[hinit kept only the end of this output]\n"), end...)
	}
	return end, r.foundGone
}
