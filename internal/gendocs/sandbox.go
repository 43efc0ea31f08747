package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"hinit/sandbox"
	"hinit/sandbox/dockercli"
)

// life is where the states of a sandbox's container are in the picture. Gone is what the engine does not know.
var life = []box{
	{string(sandbox.Gone), 90, 60},
	{string(sandbox.Created), 310, 60},
	{string(sandbox.Running), 560, 60},
	{string(sandbox.Paused), 790, 60},
	{string(sandbox.Exited), 560, 220},
}

var lifeArrows = []arrow{
	{way: "M142 60H258", events: []string{"first command"}, x: 154, y: 50},
	{way: "M362 60H508", events: []string{"mounts checked"}, x: 380, y: 50},
	{way: "M612 50H738", events: []string{"docker pause"}, x: 634, y: 42},
	{way: "M738 72H612", events: []string{"docker unpause, start"}, x: 620, y: 92},
	{way: "M540 78L540 202", events: []string{"stop, OOM, reboot"}, x: 420, y: 140},
	{way: "M580 202L580 78", events: []string{"next use"}, x: 588, y: 140},
	{way: "M508 230C300 260 150 220 100 78", events: []string{"twice the idle window: reap"}, x: 180, y: 232},
	{way: "M530 42C450 0 180 0 100 42", events: []string{"rm, or its agent is dead"}, x: 240, y: 22},
	{way: "M290 78C240 130 170 130 116 78", events: []string{"a start that failed"}, x: 150, y: 132},
}

// sandboxPages are the pages about sandboxes: what the binary itself says, and the table of docker's calls.
func sandboxPages(ctx context.Context, root string) (map[string]string, error) {
	dir, err := os.MkdirTemp("", "gendocs-")
	if err != nil {
		return nil, fmt.Errorf("cannot build hinit-sandbox: %w", err)
	}
	defer os.RemoveAll(dir)
	binary := filepath.Join(dir, "hinit-sandbox")
	build := exec.CommandContext(ctx, "go", "build", "-o", binary, "./cmd/hinit-sandbox")
	build.Dir, build.Stderr = root, os.Stderr
	if err := build.Run(); err != nil {
		return nil, fmt.Errorf("cannot build hinit-sandbox: %w", err)
	}
	overview, err := output(ctx, binary, "help")
	if err != nil {
		return nil, err
	}
	var b strings.Builder
	b.WriteString(`# The command line of sandboxes

<!-- Generated from the help of the commands and the tables of the code by internal/gendocs. Do not edit. -->

[Sandboxes](../explanation/sandboxes.md) explains them.

`)
	list, err := merge(ctx, overview, binary, true)
	if err != nil {
		return nil, err
	}
	b.WriteString(list)
	b.WriteString(`
## In the place of docker

Called as ` + "`docker`" + ` or ` + "`podman`" + `, or by the path in ` + "`HERMES_DOCKER_BINARY`" + `, the same program answers these calls and no others. The formats
are the agent's: ` + "`{{.Driver}}`, `{{json .Config.Entrypoint}}`, `{{.ID}}`, `{{.State}}` and `{{.State.FinishedAt}}`" + `. Anything else goes to the docker
command, if there is another one in ` + "`PATH`" + `.

` + dockerTable() + `
Always refused are ` + "`--privileged`" + `, devices, and capabilities and security options beyond a sandbox's own. So are namespaces of the
host or of another container, and mounts of ` + "`/`" + ` and of an engine's socket. ` + "`HINIT_SANDBOX_ALLOW`" + ` permits them where there is no service: ` + "`privileged`, `host`, `socket`" + `.
`)
	return map[string]string{
		"docs/reference/sandbox.md":   b.String(),
		"docs/img/sandbox-states.svg": draw("sandbox/engine.go", 860, 265, life, lifeArrows),
	}, nil
}

// dockerTable is a Markdown table of the calls that the personality answers.
func dockerTable() string {
	var b strings.Builder
	b.WriteString("| Command | Flags |\n|---|---|\n")
	var run map[string]string
	dockercli.Described(func(line string, flags map[string]string) {
		if strings.HasPrefix(line, "docker run ") {
			run = flags
		}
		if strings.HasPrefix(line, "docker create ") && len(flags)+1 == len(run) {
			fmt.Fprintf(&b, "| `%s` | as `docker run`, without `--detach` |\n", line)
			return
		}
		var cells []string
		for _, long := range slices.Sorted(maps.Keys(flags)) {
			cell := "`--" + long + "`"
			if short := flags[long]; short != "" {
				cell = "`-" + short + "`, " + cell
			}
			cells = append(cells, cell)
		}
		fmt.Fprintf(&b, "| `%s` | %s |\n", line, strings.Join(cells, ", "))
	})
	return b.String()
}
