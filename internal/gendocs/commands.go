package main

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	"hinit/internal/cli"
	"hinit/internal/loglevel"
)

// command holds the help of one command. The shell completion of hinit reads its JSON form.
type command struct {
	name, usage, summary string
	body                 []string

	completionChoices

	Flags []flagOption `json:"flags,omitempty"`
}

// completionChoices are the words with which a shell completes an argument of a command, or the value of a flag.
type completionChoices struct {
	Words []string `json:"words,omitempty"` // words that may be the first argument, such as check and schema, or values of the flag
	Names bool     `json:"names,omitempty"` // true: names of services and profiles too
	Files bool     `json:"files,omitempty"` // true: names of files too
}

// flagOption is one flag of a command.
type flagOption struct {
	Name  string `json:"name"`
	Value string `json:"value,omitempty"`
	Usage string `json:"usage,omitempty"`

	completionChoices
}

// newFlagOption returns a flag, with the words that can be its value.
func newFlagOption(name, value, usage string) flagOption {
	o := flagOption{Name: name, Value: value, Usage: usage}
	switch value {
	case "FILE", "DIR", "PATH":
		o.Files = true
	case "NAME":
		o.Names = true
	case "STATE":
		o.Words = cli.States()
	case "LEVEL":
		o.Words = loglevel.Names()
	default:
		if strings.Contains(value, "|") {
			o.Words = strings.Split(value, "|")
		}
	}
	return o
}

var (
	optionLine   = regexp.MustCompile(`^  (--?[a-z][a-z-]*)(?: ([A-Z][A-Z:|]*|[a-z]+(?:\|[a-z]+)+))? +(.*)$`)
	subcommand   = regexp.MustCompile(`^  hinit ([a-z-]+ [a-z-]+) +(.*)$`)
	leadingWords = regexp.MustCompile(`^\[?([a-z]+(?: \[[A-Z]+\])?(?: ?\| ?[a-z]+)*)\b`)
)

// commandPages returns generated files by their names: the table for the shell completion, and the manual pages. It makes both
// from the help output of the programs.
func commandPages(ctx context.Context, hinit string) (map[string]string, error) {
	overview, err := outputOf(ctx, hinit, "help")
	if err != nil {
		return nil, err
	}
	table, pages := make(map[string]command), make(map[string]string)
	var list, others strings.Builder
	for line := range strings.Lines(overview) {
		m := summaryLine.FindStringSubmatch(strings.TrimRight(line, "\n"))
		if m == nil {
			continue
		}
		c, err := helpOf(ctx, hinit, m[1])
		if err != nil {
			return nil, err
		}
		c.summary = m[2]
		if companionVerbs[m[1]] && c.usage == "" { // the command has subcommands
			for _, word := range c.Words {
				if table[m[1]+" "+word], err = helpOf(ctx, hinit, m[1], word); err != nil {
					return nil, err
				}
			}
		}
		table[m[1]] = c
		pages["internal/cli/tools/man/hinit-"+m[1]+".1"] = c.manualPage()
		fmt.Fprintf(&list, ".TP\n\\fBhinit %s\\fR\n%s\n", escapeRoff(m[1]), escapeRoff(m[2]))
		fmt.Fprintf(&others, ",\n.BR hinit\\-%s (1)", escapeRoff(m[1]))
	}
	pages["internal/cli/tools/man/hinit.1"] = strings.NewReplacer("@COMMANDS@\n", list.String(), "@OTHERS@", strings.TrimPrefix(others.String(), ",\n")).Replace(manOfHinit)
	text, err := json.MarshalIndent(table, "", " ")
	pages["internal/cli/tools/commands.json"] = string(text) + "\n"
	return pages, err
}

// helpOf runs a command with --help and parses the output.
func helpOf(ctx context.Context, hinit string, words ...string) (c command, err error) {
	help, err := outputOf(ctx, hinit, append(words, "--help")...)
	if err != nil {
		return c, err
	}
	c.name = strings.Join(words, " ")
	first, rest, _ := strings.Cut(help, "\n")
	usage, is := strings.CutPrefix(first, "usage: hinit "+c.name)
	if !is {
		rest = help
	}
	c.usage = strings.TrimSpace(usage)
	if companionVerbs[words[0]] || words[0] == "import" { // the NAME in the usage of these commands is not a service
		c.Files = strings.HasPrefix(c.usage, "FILE")
	} else {
		c.Names, c.Files = strings.Contains(c.usage, "NAME"), strings.Contains(c.usage, "FILE")
	}
	if m := leadingWords.FindStringSubmatch(c.usage); is && m != nil {
		for word := range strings.SplitSeq(m[1], "|") {
			word, _, _ = strings.Cut(strings.TrimSpace(word), " ")
			c.Words = append(c.Words, word)
		}
	}
	if !is {
		c.usage = ""
	}
	for i, line := range strings.Split(strings.TrimSpace(rest), "\n") {
		sub, flag := subcommand.FindStringSubmatch(line), optionLine.FindStringSubmatch(line)
		switch {
		case flag != nil:
			c.Flags = append(c.Flags, newFlagOption(flag[1], flag[2], flag[3]))
			continue
		case sub != nil && !is:
			_, word, _ := strings.Cut(sub[1], " ")
			c.Words = append(c.Words, word)
		}
		if i > 0 || !is {
			c.body = append(c.body, line)
		}
	}
	return c, nil
}

var (
	//go:embed hinit.1.in
	manOfHinit string
	//go:embed verb.1.in
	manOfVerb string
)

// escapeRoff escapes text so that troff prints it literally.
func escapeRoff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(text)
	if strings.HasPrefix(text, ".") || strings.HasPrefix(text, "'") {
		text = `\&` + text
	}
	return text
}

// manualPage returns the manual page of the command.
func (c command) manualPage() string {
	var body strings.Builder
	for line := range strings.SplitSeq(strings.TrimSpace(strings.Join(c.body, "\n")), "\n") {
		switch {
		case line == "" && body.Len() == 0:
			continue
		case body.Len() == 0:
			body.WriteString(".SH DESCRIPTION\n")
		}
		if line == "" {
			body.WriteString(".PP\n")
			continue
		}
		body.WriteString(escapeRoff(line) + "\n")
		// a row of a table, or the end of a sentence
		if strings.Contains(line, "  ") || strings.HasSuffix(line, ".") {
			body.WriteString(".br\n")
		}
	}
	for i, f := range c.Flags {
		if i == 0 {
			body.WriteString(".SH OPTIONS\n")
		}
		value := ""
		if f.Value != "" {
			value = ` \fI` + escapeRoff(f.Value) + `\fR`
		}
		fmt.Fprintf(&body, ".TP\n\\fB%s\\fR%s\n%s\n", escapeRoff(f.Name), value, escapeRoff(f.Usage))
	}
	return strings.NewReplacer("@TITLE@", strings.ToUpper(escapeRoff(c.name)), "@NAME@", escapeRoff(c.name), "@SUMMARY@", escapeRoff(c.summary),
		"@ARGS@", escapeRoff(cmp.Or(c.usage, "COMMAND")), "@BODY@\n", body.String()).Replace(manOfVerb)
}
