package dockercli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/samber/lo"

	"hinit/sandbox"
)

// Emulator executes docker commands on the sandboxes of a manager. Several goroutines may use it.
type Emulator struct{ *sandbox.Manager }

// Caller is the process that runs the docker command, with its streams.
type Caller struct {
	// Process is the name of the process that runs several docker commands in a row, usually the agent, see [ProcessName].
	// The Emulator uses it to connect a docker run with an earlier docker ps. If it is empty, the Emulator remembers nothing
	// from one command to the next.
	Process string
	// Env holds the values of variables that the command line names without a value (-e NAME).
	Env map[string]string

	sandbox.Streams
}

// Exit codes of the docker command.
const (
	exitFailed        = 1
	exitDaemon        = 125 // docker run failed or was refused
	exitKilled        = 137
	exitNotExecutable = 126 // the command could not be run
)

// Execute executes a call. It prints what the docker command would print, and returns its exit code.
func (p *Emulator) Execute(ctx context.Context, c *Call, from Caller) int {
	return c.command.handle(p, ctx, c, from)
}

// printError prints an error as the docker command does, and returns code. ref is the container or image that the error is about.
func (c Caller) printError(code int, err error, ref string) int {
	fmt.Fprintln(c.Err, daemonMessage(err, ref))
	return code
}

const daemonPrefix = "Error response from daemon: "

// daemonMessage returns docker's message for an error. It must match docker's word for word, because the agent searches for
// some of these texts.
func daemonMessage(err error, ref string) string {
	text := err.Error()
	switch at := strings.Index(text, daemonPrefix); {
	case errors.Is(err, sandbox.ErrGone):
		return daemonPrefix + "No such container: " + ref
	case at >= 0:
		return text[at:]
	case errors.Is(err, sandbox.ErrNoEngine):
		return "Cannot connect to the Docker daemon. Is the docker daemon running? (" + text + ")"
	}
	return daemonPrefix + text
}

func (p *Emulator) version(ctx context.Context, _ *Call, from Caller) int {
	fmt.Fprintf(from.Out, "Client: hinit\n")
	info, err := p.Engine().Info(ctx)
	if err != nil {
		return from.printError(exitFailed, err, "")
	}
	fmt.Fprintf(from.Out, " API version:       %s\n OS/Arch:           %s/%s\n\nServer:\n Engine:\n  Version:          %s\n  API version:      %s\n  OS/Arch:          %s/%s\n",
		info.API, info.OS, info.Arch, info.Version, info.API, info.OS, info.Arch)
	return 0
}

func (p *Emulator) info(ctx context.Context, _ *Call, from Caller) int {
	info, err := p.Engine().Info(ctx)
	return from.printResult(info.Driver, err)
}

func (p *Emulator) imageInspect(ctx context.Context, c *Call, from Caller) int {
	image, err := p.Engine().Image(ctx, c.Words[0])
	if errors.Is(err, sandbox.ErrNoImage) {
		fmt.Fprintln(from.Out)
		fmt.Fprintf(from.Err, "%sNo such image: %s\n", daemonPrefix, withDefaultTag(c.Words[0]))
		return exitFailed
	}
	return from.printResult(toJSON(image.Entrypoint), err)
}

// ps executes docker ps. It remembers the result for a later docker run, see [Emulator.run].
func (p *Emulator) ps(ctx context.Context, c *Call, from Caller) int {
	found, err := p.Engine().List(ctx, c.Labels)
	if err != nil {
		return from.printError(exitFailed, err, "")
	}
	slices.SortStableFunc(found, func(a, b sandbox.Container) int { return b.Created.Compare(a.Created) })
	seen := psListing{At: time.Now()}
	for _, container := range found {
		seen.IDs = append(seen.IDs, container.ID)
		if container.State == sandbox.Running {
			seen.Running = append(seen.Running, container.ID)
		}
		switch {
		case len(c.Status) > 0 && !slices.Contains(c.Status, container.State),
			len(c.Status) == 0 && !c.ShowAll && container.State != sandbox.Running && container.State != sandbox.Paused && container.State != sandbox.Restarting:
			continue
		}
		id := container.ID
		if !c.ShowFullIDs {
			id = id[:min(12, len(id))]
		}
		if c.ShowState {
			id += "\t" + string(container.State)
		}
		fmt.Fprintln(from.Out, id)
	}
	if len(c.Status) == 0 {
		p.storeForCaller(from, "probe", toJSON(c.Labels), seen)
	}
	return 0
}

// printResult prints the result of a command, such as the name of the container, or the error. It returns the exit code.
func (c Caller) printResult(result string, err error) int {
	if err != nil {
		return c.printError(exitFailed, err, result)
	}
	fmt.Fprintln(c.Out, result)
	return 0
}

func (p *Emulator) start(ctx context.Context, _ *Call, ref string, from Caller) int {
	container, err := p.Engine().Inspect(ctx, ref)
	if key := agentLabels(container.Labels); err == nil && key != nil && container.State == sandbox.Created {
		// Take the lock, because another agent may have just created this container and be about to start it.
		var unlock func()
		if unlock, err = p.Lock(ctx, key); err == nil {
			defer unlock()
			container, err = p.Engine().Inspect(ctx, ref)
		}
	}
	if err == nil {
		p.ForgetAdopted(container.ID)
		// Unlike docker start, also unpause the container; otherwise the agent would create a second one.
		err = p.WakeContainer(ctx, container)
	}
	code := from.printResult(ref, err)
	if err != nil {
		fmt.Fprintf(from.Err, "Error: failed to start containers: %s\n", ref)
	}
	return code
}

func (p *Emulator) inspect(ctx context.Context, _ *Call, ref string, from Caller) int {
	container, err := p.Engine().Inspect(ctx, ref)
	if errors.Is(err, sandbox.ErrGone) {
		fmt.Fprintln(from.Out)
		fmt.Fprintf(from.Err, "Error: No such object: %s\n", ref)
		return exitFailed
	}
	if err != nil {
		return from.printError(exitFailed, err, ref)
	}
	fmt.Fprintln(from.Out, container.Finished.UTC().Format(time.RFC3339Nano))
	return 0
}

func (p *Emulator) stop(ctx context.Context, c *Call, ref string, from Caller) int {
	container, err := p.Engine().Inspect(ctx, ref)
	if err == nil {
		p.ForgetAdopted(container.ID)
		err = p.Engine().Stop(ctx, container.ID, time.Duration(c.Grace)*time.Second)
	}
	return from.printResult(ref, err)
}

func (p *Emulator) remove(ctx context.Context, c *Call, ref string, from Caller) int {
	container, err := p.Engine().Inspect(ctx, ref)
	switch {
	case errors.Is(err, sandbox.ErrGone) && c.Force:
		from.printError(0, err, ref)
		return 0
	case err == nil && !c.Force && (container.State == sandbox.Running || container.State == sandbox.Paused || container.State == sandbox.Restarting):
		err = fmt.Errorf("%sYou cannot remove a %s container %s. Stop the container before attempting removal or force remove", daemonPrefix, container.State, container.ID)
	case err == nil:
		p.ForgetAdopted(container.ID)
		err = p.Engine().Remove(ctx, container.ID)
	}
	return from.printResult(ref, err)
}

// withDefaultTag returns an image reference with the tag "latest" if it has none, as docker does.
func withDefaultTag(ref string) string {
	if name := ref[strings.LastIndexByte(ref, '/')+1:]; strings.ContainsAny(name, ":@") {
		return ref
	}
	return ref + ":latest"
}

// run executes docker run -d and docker create. An agent first looks for its container with docker ps, and runs a new one if
// there is none. If two agents did so at the same time, they would make two containers. So run returns an existing container
// if the caller's docker ps found none and another caller has made one since then. A caller that has not run docker ps always
// gets a new container.
func (p *Emulator) run(ctx context.Context, c *Call, from Caller) int {
	spec, start := c.Spec, c.command.name == "run"
	spec.Env = append(spec.Env, sandbox.SortedAssignments(sandbox.FlagVariables(c.Env, from.Env))...)
	var seen psListing
	key := agentLabels(spec.Labels)
	looked := start && key != nil && p.loadForCaller(from, "probe", toJSON(key), &seen)
	if start && key != nil && !looked && from.Process != "" {
		spec.Labels = maps.Clone(spec.Labels)
		spec.Labels[sandbox.LabelClient] = from.Process
	}
	if start && key != nil {
		unlock, err := p.Lock(ctx, key)
		if err != nil {
			return from.printError(exitDaemon, err, "")
		}
		defer unlock()
	}
	if looked {
		there, found, err := p.FindContainer(ctx, key, func(there sandbox.Container) bool {
			return slices.Contains(seen.Running, there.ID) || there.State != sandbox.Running && slices.Contains(seen.IDs, there.ID)
		})
		switch {
		case err != nil:
			return p.failRun(c, err, from)
		case found:
			fmt.Fprintln(from.Out, there.ID)
			return 0
		}
	}
	if err := p.pullIfMissing(ctx, spec.Image, from); err != nil {
		return p.failRun(c, err, from)
	}
	create := lo.Ternary(start, p.MakeContainer, p.Engine().Create)
	id, err := create(ctx, spec)
	if err != nil {
		return p.failRun(c, err, from)
	}
	fmt.Fprintln(from.Out, id)
	return 0
}

// agentLabels returns the three labels by which the agent finds its container again, or nil if one is missing.
func agentLabels(labels map[string]string) map[string]string {
	key := lo.PickByKeys(labels, []string{sandbox.LabelAgent, sandbox.LabelTask, sandbox.LabelProfile})
	if len(key) < 3 {
		return nil
	}
	return key
}

// pullIfMissing pulls an image if the engine does not have it.
func (p *Emulator) pullIfMissing(ctx context.Context, ref string, from Caller) error {
	_, err := p.Engine().Image(ctx, ref)
	if !errors.Is(err, sandbox.ErrNoImage) {
		return err
	}
	fmt.Fprintf(from.Err, "Unable to find image '%s' locally\n", withDefaultTag(ref))
	return p.Engine().Pull(ctx, ref)
}

func (p *Emulator) failRun(c *Call, err error, from Caller) int {
	text := daemonMessage(err, c.Spec.Image)
	if c.command.name == "create" {
		fmt.Fprintln(from.Err, text)
		return exitFailed
	}
	fmt.Fprintf(from.Err, "docker: %s\n\nRun 'docker run --help' for more information\n", text)
	return exitDaemon
}

// psListing records the containers that a process saw with docker ps.
type psListing struct {
	At      time.Time
	IDs     []string
	Running []string // IDs of the running containers.
}

// failedCommand records the end of a failed command whose output may make the agent run it again, see [Emulator.exec].
type failedCommand struct {
	At     time.Time
	Code   int
	Output []byte
}

// storeForCaller stores a value for a few minutes. Only commands of the same caller process can recall it.
func (p *Emulator) storeForCaller(from Caller, kind, key string, value any) {
	if from.Process != "" {
		p.StoreCached(kind+" "+from.Process+" "+key, []byte(toJSON(value)))
	}
}

// loadForCaller reads a value that remember has stored for the caller's process. It returns false if none is stored.
func (p *Emulator) loadForCaller(from Caller, kind, key string, value any) bool {
	if from.Process == "" {
		return false
	}
	text, ok := p.LoadCached(kind + " " + from.Process + " " + key)
	return ok && json.Unmarshal(text, value) == nil
}

// toJSON returns a value as JSON. Equal values give equal texts, so the text can be part of a key.
func toJSON(v any) string {
	text, _ := json.Marshal(v) // Marshal can't fail for these types.
	return string(text)
}
