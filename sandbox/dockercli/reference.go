package dockercli

import (
	"fmt"
	"slices"
	"strings"
)

// Reference is a Markdown table of the calls that the personality answers.
func Reference() string {
	var b strings.Builder
	b.WriteString("| Command | Flags |\n|---|---|\n")
	for _, c := range commands() {
		var flags []string
		for name := range strings.FieldsSeq(c.known) {
			if short := c.grammar.Short(name); short != "" {
				name = "`-" + short + "`, `--" + name + "`"
			} else {
				name = "`--" + name + "`"
			}
			flags = append(flags, name)
		}
		slices.SortFunc(flags, func(a, b string) int { return strings.Compare(long(a), long(b)) })
		line := strings.TrimSpace("docker " + c.name + " " + c.args)
		fmt.Fprintf(&b, "| `%s` | %s |\n", line, strings.Join(flags, ", "))
	}
	return b.String()
}

// long is the long form in what Reference makes of a flag.
func long(flag string) string { return flag[strings.Index(flag, "--"):] }
