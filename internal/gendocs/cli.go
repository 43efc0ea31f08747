package main

import (
	"bytes"
	"context"
	"fmt"
	"maps"
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

The commands talk to the running hinit over its [control socket](control-api.md), as root or as the agent's user. Human output
goes to standard output, errors to standard error in one line. What the exit codes mean is in [exit-codes.md](exit-codes.md), what
the commands print with ` + "`--json`" + ` in [json.md](json.md). Programs of their own have their own help: ` + "`hinit sandbox`" + ` ([page](sandbox.md)),
` + "`hinit kanban` ([page](kanban.md)), `hinit web`, `hinit forward`, `hinit metrics` and `hinit top`" + `.

` + "```text\n" + overview + "```\n")
	verbs := regexp.MustCompile(`(?m)^  hinit ([\w-]+)`).FindAllStringSubmatch(overview, -1)
	if len(verbs) == 0 {
		return "", fmt.Errorf("cannot find the commands in the help of hinit")
	}
	verbs = slices.DeleteFunc(verbs, func(verb []string) bool { return companions[verb[1]] })
	err = helps(ctx, &b, binary, "hinit", verbs)
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
	err = helps(ctx, &b, binary, "hinit kanban", verbs)
	return b.String(), err
}

// companions are the verbs that hinit hands to other programs.
var companions = map[string]bool{"sandbox": true, "kanban": true, "top": true, "metrics": true, "web": true, "forward": true}

// several is the number of commands from which on the page describes their common flag once.
const several = 3

// helps writes a chapter for each command. A chapter leaves out the summary, which the overview has, and what another chapter says already.
func helps(ctx context.Context, b *strings.Builder, binary, program string, verbs [][]string) error {
	texts, uses := make(map[string]string), make(map[string]int)
	for _, verb := range verbs {
		help, err := output(ctx, binary, verb[1], "--help")
		if err != nil {
			return err
		}
		texts[verb[1]] = help
		for line := range strings.Lines(help) {
			if strings.HasPrefix(line, "  -") {
				uses[line]++
			}
		}
	}
	b.WriteString("\n## Flags of several commands\n\n```text\n")
	for _, line := range slices.Sorted(maps.Keys(uses)) {
		if uses[line] >= several {
			b.WriteString(line)
		}
	}
	b.WriteString("```\n")
	said := make(map[string]string)
	for _, verb := range verbs {
		usage, rest, _ := strings.Cut(texts[verb[1]], "\n\n")
		_, rest, _ = strings.Cut(rest, "\n\n")
		about, flags, _ := strings.Cut("\n\n"+rest, "\n\n  -")
		if about = strings.Trim(about, "\n"); about != "" {
			if first := said[about]; first != "" {
				about = "As for " + program + " " + first + "."
			} else {
				said[about] = verb[1]
			}
			about = "\n" + about + "\n"
		}
		own, common := chapterFlags("  -"+flags, usage, uses)
		fmt.Fprintf(b, "\n## %s %s\n\n```text\n%s\n", program, verb[1], usage)
		for _, part := range []string{about, own, common} {
			b.WriteString(part)
		}
		b.WriteString("```\n")
	}
	return nil
}

// chapterFlags splits the flags of a command into those that it alone describes and a line with the names of the others. The usage line
// may have such a name already.
func chapterFlags(flags, usage string, uses map[string]int) (own, common string) {
	var names []string
	for line := range strings.Lines(flags) {
		name, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch {
		case name == "-" || uses[line] >= several && strings.Contains(usage, name):
		case uses[line] >= several:
			names = append(names, name)
		default:
			own += line
		}
	}
	if own != "" {
		own = "\n" + own
	}
	if len(names) > 0 {
		common = "\nalso: " + strings.Join(names, " ") + "\n"
	}
	return own, common
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
