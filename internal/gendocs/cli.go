package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
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
[hinit sandbox](sandbox.md) and [hinit kanban](kanban.md).

` + "```text\n" + overview + "```\n")
	verbs := regexp.MustCompile(`(?m)^  hinit ([\w-]+)`).FindAllStringSubmatch(overview, -1)
	if len(verbs) == 0 {
		return "", fmt.Errorf("cannot find the commands in the help of hinit")
	}
	verbs = slices.DeleteFunc(verbs, func(verb []string) bool { return companions[verb[1]] })
	err = commands(ctx, &b, binary, verbs)
	return b.String(), err
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

The command line of the [task board](../explanation/kanban.md). It works on the same file as the agent's own ` + "`hermes kanban`" + `, with the same
flags, exit codes and names in JSON. These are different:

- The text for people has other words. Scripts should read ` + "`--json`" + `.
- ` + "`diagnostics`" + ` is another name of ` + "`doctor`" + `, with findings of its own.
- ` + "`list`" + ` promotes no tasks, and ` + "`boards delete`" + ` puts a board away like ` + "`boards rm`" + `.
- The agent itself answers the verbs that need a model or a chat. ` + "`hinit kanban`" + ` runs it for them.

To begin: [three agents share a board](../tutorial/three-agents-share-a-board.md).

` + "```text\n" + overview + "```\n")
	verbs := regexp.MustCompile(`(?m)^  hinit kanban (\w+)`).FindAllStringSubmatch(overview, -1)
	err = usages(ctx, &b, binary, verbs)
	return b.String(), err
}

// companions are the verbs that hinit hands to other programs.
var companions = map[string]bool{"sandbox": true, "kanban": true, "top": true, "metrics": true, "web": true, "forward": true}

// usages writes a line for each command: its usage and the names of its flags, whose meaning its --help has.
func usages(ctx context.Context, b *strings.Builder, binary string, verbs [][]string) error {
	b.WriteString("\n## Flags\n\n`--help` behind a command explains them.\n\n```text\n")
	for _, verb := range verbs {
		help, err := output(ctx, binary, verb[1], "--help")
		if err != nil {
			return err
		}
		usage, _, _ := strings.Cut(strings.TrimPrefix(help, "usage: "), "\n")
		words := []string{strings.ReplaceAll(usage, "[OPTIONS] ", "")}
		for line := range strings.Lines(help) {
			if strings.HasPrefix(line, "  -") {
				words = append(words, strings.Fields(line)[0])
			}
		}
		b.WriteString(strings.Join(words, " ") + "\n")
	}
	b.WriteString("```\n")
	return nil
}

// explained are the commands whose text no other page says.
var explained = map[string]bool{
	"init": true, "start": true, "checks": true, "profile": true, "topology": true, "logs": true, "wait": true, "config": true, "healthcheck": true,
}

// commands writes the usage of each command, and then the texts of those in [explained].
func commands(ctx context.Context, b *strings.Builder, binary string, verbs [][]string) error {
	b.WriteString("\n## Usage\n\n`hinit COMMAND --help` and `hinit man COMMAND` explain each.\n\n```text\n")
	var texts strings.Builder
	for _, verb := range verbs {
		help, err := output(ctx, binary, verb[1], "--help")
		if err != nil {
			return err
		}
		usage, rest, _ := strings.Cut(help, "\n\n")
		b.WriteString(strings.TrimPrefix(strings.TrimSpace(usage), "usage: ") + "\n")
		_, rest, _ = strings.Cut(rest, "\n\n")
		about, _, _ := strings.Cut("\n\n"+rest, "\n\n  -")
		if explained[verb[1]] {
			fmt.Fprintf(&texts, "\n### %s\n\n```text\n%s\n```\n", verb[1], strings.Trim(about, "\n"))
		}
	}
	b.WriteString("```\n" + texts.String())
	return nil
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
