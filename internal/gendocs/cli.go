package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// built builds the programs whose help has a page, and returns the path of one of them. remove deletes all.
func built(ctx context.Context, root, program string) (path string, remove func(), err error) {
	dir, err := os.MkdirTemp("", "gendocs-")
	if err != nil {
		return "", nil, fmt.Errorf("cannot build %s: %w", program, err)
	}
	build := exec.CommandContext(ctx, "go", "build", "-o", dir+"/", "./cmd/hinit", "./cmd/hinit-tools", "./cmd/hinit-import", "./cmd/hinit-kanban")
	build.Dir, build.Stderr = root, os.Stderr
	if err := build.Run(); err != nil {
		os.RemoveAll(dir)
		return "", nil, fmt.Errorf("cannot build %s: %w", program, err)
	}
	return filepath.Join(dir, program), func() { os.RemoveAll(dir) }, nil
}

// commandLine asks the binary itself: what it says with --help is what the page says.
func commandLine(ctx context.Context, root string) (string, error) {
	binary, remove, err := built(ctx, root, "hinit")
	if err != nil {
		return "", err
	}
	defer remove()
	overview, err := output(ctx, binary, "help")
	if err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString(`# The command line

<!-- Generated from the help of the commands by internal/gendocs. Do not edit. -->

The commands talk to the running hinit over its [control socket](control-api.md), as root or as the agent's user. Human output
goes to standard output, errors to standard error in one line. What the exit codes mean is in [exit-codes.md](exit-codes.md), what
the commands print with ` + "`--json`" + ` in [json.md](json.md).

` + "```text\n" + overview + "```\n")
	verbs := regexp.MustCompile(`(?m)^  hinit ([\w-]+)`).FindAllStringSubmatch(overview, -1)
	if len(verbs) == 0 {
		return "", fmt.Errorf("cannot find the commands in the help of hinit")
	}
	for _, verb := range verbs {
		if program := companions[verb[1]]; program != "" {
			fmt.Fprintf(&b, "\n## hinit %s\n\nA program of its own, `%s`, which is installed beside hinit. See: `hinit %[1]s --help`\n", verb[1], program)
			if verb[1] == "kanban" {
				b.WriteString("Its commands are in [kanban.md](kanban.md).\n")
			}
			if verb[1] == "top" {
				b.WriteString("How it is used is in [look after many agents](../how-to/look-after-many-agents.md).\n")
			}
			continue
		}
		help, err := output(ctx, binary, verb[1], "--help")
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&b, "\n## hinit %s\n\n```text\n%s```\n", verb[1], help)
	}
	return b.String(), nil
}

// kanbanPage asks hinit-kanban in the same way.
func kanbanPage(ctx context.Context, root string) (string, error) {
	binary, remove, err := built(ctx, root, "hinit-kanban")
	if err != nil {
		return "", err
	}
	defer remove()
	overview, err := output(ctx, binary, "help")
	if err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString(`# hinit kanban

<!-- Generated from the help of the commands by internal/gendocs. Do not edit. -->

The command line of the task board. It works on the same file as the agent's own ` + "`hermes kanban`" + `. It takes the flags of that command,
returns its exit codes, and has its names in JSON; a test compares them. These are different:

- The text for people has other words. Scripts should read ` + "`--json`" + `.
- ` + "`diagnostics`" + ` is another name of ` + "`doctor`" + `, with findings of its own.
- ` + "`list`" + ` promotes no tasks, and ` + "`boards delete`" + ` puts a board away like ` + "`boards rm`" + `.
- The agent itself answers the verbs that need a model or a chat. ` + "`hinit kanban`" + ` runs it for them.

How the board works is in [claims](../explanation/kanban.md); how to start is in
[three agents share a board](../tutorial/three-agents-share-a-board.md).

` + "```text\n" + overview + "```\n")
	for _, verb := range regexp.MustCompile(`(?m)^  hinit kanban (\w+)`).FindAllStringSubmatch(overview, -1) {
		help, err := output(ctx, binary, verb[1], "--help")
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&b, "\n## hinit kanban %s\n\n```text\n%s```\n", verb[1], help)
	}
	return b.String(), nil
}

// companions are the verbs that hinit hands to a program of their own.
var companions = map[string]string{"sandbox": "hinit-sandbox", "kanban": "hinit-kanban", "top": "hinit-top", "metrics": "hinit-web", "web": "hinit-web", "forward": "hinit-web"}

// output runs the binary with an empty environment, so that the page is the same everywhere.
func output(ctx context.Context, binary string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env = []string{}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("cannot run hinit %s: %w: %s", strings.Join(args, " "), err, errs.String())
	}
	var text strings.Builder
	for line := range strings.Lines(out.String()) {
		text.WriteString(strings.TrimRight(strings.ReplaceAll(line, "\t", "    "), " \n") + "\n")
	}
	return strings.TrimRight(text.String(), "\n") + "\n", nil
}
