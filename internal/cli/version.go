package cli

import (
	"fmt"

	"hinit/internal/version"
)

func versionVerb() verb {
	return verb{
		name: "version", doing: "show the version", args: "[--json]", summary: "print the version",
		run: func(t *terminal, c *call) int {
			asJSON := c.flags.Bool("json", false, "print JSON")
			handover := c.flags.Bool("handover", false, "print the format in which it takes over from a running hinit instead")
			if _, code, ok := c.parse(t, 0, 0); !ok {
				return code
			}
			if *handover {
				return showHandover(t)
			}
			if *asJSON {
				return t.failed(c.doing(), writeJSON(t.out, version.Get()))
			}
			fmt.Fprintln(t.out, "hinit", version.Get())
			return exitDone
		},
	}
}
