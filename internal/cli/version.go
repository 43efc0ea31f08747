package cli

import (
	"fmt"

	"hinit/internal/cmdline"
	"hinit/internal/reexec"
	"hinit/internal/version"
)

var versionVerb = Verb{
	Name: "version", Doing: "show the version", Args: "[--json]", Summary: "print the version",
	Run: func(t *Terminal, c *Call) int {
		handover := c.Flags.Bool("handover", false, "print the format in which it takes over from a running hinit instead")
		if _, code, ok := c.Parse(t, 0, 0); !ok {
			return code
		}
		if *handover {
			fmt.Fprintln(t.Out, reexec.Format) // hinit reexec reads this from a new binary
			return cmdline.Done
		}
		return t.Show(c, version.Get(), nil, func() { fmt.Fprintln(t.Out, "hinit", version.Get()) })
	},
}
