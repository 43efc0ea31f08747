package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/samber/lo"

	"hinit/internal/cmdline"
	"hinit/sandbox"
)

// sandboxKey returns the key of the sandbox that the flags --task and --profile select.
func (i *invocation) sandboxKey() sandbox.Key {
	return i.manager.WithDefaults(sandbox.Key{Task: i.options.task, Profile: i.options.profile})
}

// openSandbox returns the sandbox that the flags select, and makes it if it does not exist. With --in, it must exist.
func (i *invocation) openSandbox() (*sandbox.Sandbox, error) {
	if i.options.container != "" {
		return i.adopt(i.options.container)
	}
	return i.manager.Open(i.ctx, i.sandboxKey())
}

// adopt returns the running sandbox that [invocation.find] finds by name.
func (i *invocation) adopt(name string) (*sandbox.Sandbox, error) {
	d, err := i.findSandbox(name)
	if err != nil {
		return nil, err
	}
	return i.manager.Adopt(i.ctx, d.ID)
}

// findSandbox finds a sandbox by the name or id of its container, or by its task. The name "" means the sandbox that the flags
// select.
func (i *invocation) findSandbox(name string) (found sandbox.Description, err error) {
	all, err := i.manager.List(i.ctx)
	if err != nil {
		return found, err
	}
	key, id := i.sandboxKey(), ""
	if name != "" {
		key.Task = name
		// The engine also knows the earlier ids of a container that it has recreated.
		if c, err := i.manager.Engine().Inspect(i.ctx, name); err == nil {
			id = c.ID
		}
	}
	labels := sandbox.AgentLabels(key)
	for _, d := range all {
		switch {
		case d.ID == id:
			return d, nil
		case d.Labels[sandbox.LabelTask] != labels[sandbox.LabelTask] || d.Labels[sandbox.LabelProfile] != labels[sandbox.LabelProfile]:
		case found.ID == "", found.State != sandbox.Running && d.State == sandbox.Running:
			found = d
		}
	}
	if found.ID == "" {
		err = fmt.Errorf("cannot find %q: %w", key.Task, errNoSandbox)
	}
	return found, err
}

func (i *invocation) execRequest() sandbox.Request {
	return sandbox.Request{
		Dir: i.options.dir, Env: sandbox.FlagVariables(i.options.env, i.serviceRequest.Env), Stdin: i.In, Stdout: i.Out, Stderr: i.Err, Timeout: i.options.timeout,
	}
}

func (i *invocation) exec() (int, error) {
	req := i.execRequest()
	if len(i.words) == 1 {
		req.Command = i.words[0]
	} else {
		req.Argv = i.words
	}
	switch i.options.retryPolicy {
	case "never":
	case "safe":
		req.Repeatable = true
	default:
		return cmdline.ExitUsage, fmt.Errorf("cannot run the command: --retry is never or safe, not %q", i.options.retryPolicy)
	}
	switch {
	case i.options.timeout < 0:
		return cmdline.ExitUsage, errors.New("cannot run the command: --timeout must be a time such as 30s; 0 is TERMINAL_TIMEOUT")
	case i.options.json && !i.options.background:
		return cmdline.ExitUsage, errors.New("cannot run the command: --json prints a background command, and its output is its own otherwise; add --background")
	}
	box, err := i.openSandbox()
	if err != nil {
		return cmdline.ExitDone, err
	}
	if i.options.background {
		req.Stdin = nil
		job, err := box.Start(i.ctx, req)
		if err == nil {
			err = i.print(job, [][]string{{job.ID}})
		}
		return cmdline.ExitDone, err
	}
	if i.options.tty {
		i.useTerminal(&req)
	}
	return i.runAndReport(box, req)
}

func (i *invocation) useTerminal(req *sandbox.Request) {
	req.TTY, req.Size, req.Resizes, req.Stderr = true, i.serviceRequest.Size, i.Resizes, nil
}

func (i *invocation) runAndReport(box *sandbox.Sandbox, req sandbox.Request) (int, error) {
	result, err := box.Exec(i.ctx, req)
	switch {
	case errors.Is(err, sandbox.ErrLost):
		return ExitCodeUnknown, err
	case err != nil:
		return cmdline.ExitDone, err
	case result.TimedOut:
		fmt.Fprintf(i.Err, "the command ran out of time after %v, and was ended with all that it started\n", result.Duration.Round(time.Millisecond))
	case result.OOM:
		fmt.Fprintln(i.Err, "the kernel ended a process of the sandbox for want of memory")
	}
	return result.Code, nil
}

func (i *invocation) shell() (int, error) {
	box, err := i.openSandbox()
	if err != nil {
		return cmdline.ExitDone, err
	}
	req := i.execRequest()
	req.Argv, req.Timeout = []string{"/bin/sh", "-c", "if command -v bash >/dev/null 2>&1; then exec bash -l; else exec sh -l; fi"}, -1
	if i.serviceRequest.TTY {
		i.useTerminal(&req)
	}
	return i.runAndReport(box, req)
}

func (i *invocation) list() (int, error) {
	if i.options.volumes {
		found, err := i.manager.Engine().Volumes(i.ctx, sandbox.VolumePrefix, nil)
		if err != nil {
			return cmdline.ExitDone, err
		}
		rows := lo.Map(found, func(v sandbox.Volume, _ int) []string {
			return []string{v.Name, v.Labels[sandbox.LabelProfile], v.Labels[sandbox.LabelSource]}
		})
		return cmdline.ExitDone, i.print(found, append([][]string{{"VOLUME", "PROFILE", "IN THE PLACE OF"}}, rows...))
	}
	all, err := i.manager.List(i.ctx)
	if err != nil {
		return cmdline.ExitDone, err
	}
	rows := [][]string{{"SANDBOX", "TASK", "PROFILE", "STATE", "IMAGE", "EXEC", "CREATED"}}
	for _, d := range all {
		rows = append(rows, []string{d.Name, d.Task, d.Profile, string(d.State), d.Image, d.Exec, d.Created.UTC().Format(time.RFC3339)})
	}
	return cmdline.ExitDone, i.print(append([]sandbox.Description{}, all...), rows)
}

func (i *invocation) show() (int, error) {
	d, err := i.findSandbox(i.words[0])
	if err != nil {
		return cmdline.ExitDone, err
	}
	if d.State == sandbox.Running {
		box, err := i.manager.Adopt(i.ctx, d.ID)
		if err == nil {
			d, err = box.Describe(i.ctx)
		}
		if err != nil {
			return cmdline.ExitDone, err
		}
	} else if c, err := i.manager.Engine().Inspect(i.ctx, d.ID); err == nil {
		d.User = c.User
	}
	how := d.Exec
	if d.Reason != "" {
		how += " (" + d.Reason + ")"
	}
	rows := [][]string{
		{"Sandbox", d.Name},
		{"Container", d.ID},
		{"Task", d.Task},
		{"Profile", d.Profile},
		{"Image", d.Image},
		{"State", string(d.State)},
		{"Created", d.Created.UTC().Format(time.RFC3339)},
		{"Commands", how},
		{"User", cmp.Or(d.User, "the image's")},
		{"Root", d.Root},
		{"Directory", d.Dir},
		{"Clients", fmt.Sprint(d.Clients)},
	}
	for _, j := range d.Jobs {
		state := lo.Ternary(j.Running, "running", fmt.Sprintf("ended with %d", j.Code))
		rows = append(rows, []string{"Job " + j.ID, state + ": " + j.Command})
	}
	return cmdline.ExitDone, i.print(d, rows)
}

func (i *invocation) logs() (int, error) {
	d, err := i.findSandbox(i.words[0])
	if err != nil {
		return cmdline.ExitDone, err
	}
	if i.options.job == "" {
		return cmdline.ExitDone, i.manager.Engine().Logs(i.ctx, d.ID, i.options.follow, i.Out, i.Err)
	}
	box, err := i.manager.Adopt(i.ctx, d.ID)
	if err == nil {
		_, err = box.JobOutput(i.ctx, i.options.job, i.options.follow, i.Out)
	}
	return cmdline.ExitDone, err
}

// stopGrace is how long the first process of a container may take to stop before it is killed.
const stopGrace = 10 * time.Second

func (i *invocation) stop() (int, error) {
	if i.options.job != "" {
		if len(i.words) > 1 {
			return cmdline.ExitUsage, errors.New("cannot stop a background command: it is of one sandbox")
		}
		box, err := i.adopt(i.words[0])
		if err == nil {
			_, err = box.Kill(i.ctx, i.options.job)
		}
		return cmdline.ExitDone, err
	}
	return i.forEachSandbox(func(id string) error { return i.manager.Engine().Stop(i.ctx, id, stopGrace) })
}

func (i *invocation) remove() (int, error) {
	return i.forEachSandbox(func(id string) error { return i.manager.Engine().Remove(i.ctx, id) })
}

// forEachSandbox calls do for every sandbox that the command line names. It continues after a failure, but stops when the caller
// has gone.
func (i *invocation) forEachSandbox(do func(id string) error) (code int, err error) {
	for _, name := range i.words {
		d, err := i.findSandbox(name)
		if err == nil {
			err = do(d.ID)
		}
		if i.ctx.Err() != nil {
			return max(code, cmdline.ExitFailed), context.Cause(i.ctx)
		}
		if err != nil {
			// Print the error at once instead of collecting it, because a caller can name a million sandboxes.
			code = max(code, i.fail(err))
			continue
		}
		fmt.Fprintln(i.Out, d.Name)
	}
	return code, nil
}

// reap removes unused sandboxes and prints them. If now is true, it removes every sandbox that isn't running, however young
// it is.
func (i *invocation) reap(now bool) (int, error) {
	found, _, err := i.manager.Sweep(i.ctx, sandbox.SweepOptions{MaxAge: i.options.maxAge, AnyAge: now, Profile: i.options.profile, DryRun: i.options.dryRun})
	if err != nil {
		return cmdline.ExitDone, err
	}
	if len(found) == 0 && !i.options.json {
		fmt.Fprintln(i.Out, "nothing to remove")
		return cmdline.ExitDone, nil
	}
	code, rows := cmdline.ExitDone, [][]string{{"SANDBOX", "TASK", "PROFILE", "STATE", "AGE", "WHY"}}
	for _, r := range found {
		why := r.Why
		if r.Error != "" {
			why, code = why+"; not removed: "+r.Error, cmdline.ExitFailed
		}
		rows = append(rows, []string{r.Name, r.Task, r.Profile, string(r.State), r.Age.Round(time.Second).String(), why})
	}
	return code, i.print(append([]sandbox.Removed{}, found...), rows)
}

// transferVerb returns the function of a verb that copies data. The function calls do with the selected sandbox.
func transferVerb(do func(*invocation, *sandbox.Sandbox) error) func(*invocation) (int, error) {
	return func(i *invocation) (int, error) {
		box, err := i.openSandbox()
		if err == nil {
			err = do(i, box)
		}
		return cmdline.ExitDone, err
	}
}
