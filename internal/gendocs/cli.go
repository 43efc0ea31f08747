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

The commands talk to the running hinit over its [control socket](control-api.md), as root or as the agent's user. Output goes to standard
output, errors to standard error in one line. See also the [exit codes](exit-codes.md), the output with [--json](json.md), and the pages of
[hinit sandbox](sandbox.md) and [hinit kanban](kanban.md). ` + "`hinit COMMAND --help` and `hinit man COMMAND`" + ` explain each command.

`)
	list, err := merge(ctx, overview, binary, false)
	if err != nil {
		return "", err
	}
	b.WriteString(list)
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

The command line of the [task board](../explanation/kanban.md) has the flags, exit codes and names in JSON of the agent's own ` + "`hermes kanban`" + `.
These are different:

- The text for people: scripts should read ` + "`--json`" + `.
- ` + "`diagnostics`" + ` is another name of ` + "`doctor`" + `, with findings of its own.
- ` + "`list`" + ` promotes no tasks, and ` + "`boards delete`" + ` puts a board away like ` + "`boards rm`" + `.
- The agent itself answers the verbs that need a model or a chat. ` + "`hinit kanban`" + ` runs it for them.

`)
	list, err := merge(ctx, overview, binary, true)
	return b.String() + list, err
}

// companions are the verbs that hinit hands to other programs.
var companions = map[string]bool{"sandbox": true, "kanban": true, "top": true, "metrics": true, "web": true, "forward": true}

var summary = regexp.MustCompile(`^  hinit (?:kanban |sandbox )?([\w-]+) +(.+)$`)

// merge puts the usage of each command in the place of its name in the overview, on request with the names of its flags.
func merge(ctx context.Context, overview, binary string, flags bool) (string, error) {
	var b strings.Builder
	b.WriteString("```text\n")
	found := false
	for line := range strings.Lines(overview) {
		m := summary.FindStringSubmatch(strings.TrimRight(line, "\n"))
		if m == nil || companions[m[1]] {
			b.WriteString(line)
			continue
		}
		found = true
		help, err := output(ctx, binary, m[1], "--help")
		if err != nil {
			return "", err
		}
		usage, _, _ := strings.Cut(strings.TrimPrefix(help, "usage: "), "\n")
		words := []string{strings.ReplaceAll(usage, "[OPTIONS] ", "")}
		for line := range strings.Lines(help) {
			if flags && strings.HasPrefix(line, "  -") {
				words = append(words, strings.Fields(line)[0])
			}
		}
		b.WriteString(strings.Join(words, " ") + "\n    " + m[2] + "\n")
	}
	if !found {
		return "", fmt.Errorf("cannot find the commands in the help of %s", filepath.Base(binary))
	}
	b.WriteString("```\n")
	return b.String(), nil
}

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
