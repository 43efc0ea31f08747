package cli

import (
	"fmt"

	"hinit/internal/version"
)

// VersionVerb is hinit version.
var VersionVerb = Verb{
	Name: "version", Doing: "show the version", Args: "[--json]", Summary: "print the version",
	Run: func(t *Terminal, c *Call) int {
		// hinit answers --handover itself and does not start this program; the flag is here for the help.
		c.Flags.Bool("handover", false, "print the format in which it takes over from a running hinit instead")
		if _, code, ok := c.Parse(t, 0, 0); !ok {
			return code
		}
		return t.Show(c, version.Get(), nil, func() { fmt.Fprintln(t.Out, "hinit", version.Get()) })
	},
}
