package cli

import (
	"fmt"
	"path/filepath"

	"hinit/internal/cmdline"
	"hinit/internal/version"
)

// InitVerb implements the command hinit init. It handles --help, and otherwise executes the program hinit, which carries out the
// verb.
var InitVerb = Verb{
	Name: "init", Args: "[--] [CMD...]", Summary: "be the init: PID 1 of a container, or a subreaper elsewhere",
	Run: func(t *Terminal, c *Call) int {
		if len(c.Raw) == 1 && (c.Raw[0] == "--help" || c.Raw[0] == "-h") {
			c.Described().Usage(c.Flags, t.Out)
			return cmdline.Done
		}
		return t.becomeInit(c, c.Raw...)
	},
}

// RunVerb implements the command hinit run. It checks the arguments and executes the program hinit, which carries out the verb.
var RunVerb = Verb{
	Name: "run", Doing: "run the services", Args: "[-c FILE]", Summary: "be a plain supervisor: the services of hinit.yaml and nothing else",
	Run: func(t *Terminal, c *Call) int {
		file := c.Flags.String("c", "", "read this `FILE`")
		if _, code, ok := c.Parse(t, 0, 0); !ok {
			return code
		}
		return t.becomeInit(c, "-c", *file)
	},
}

// becomeInit replaces this process by the program hinit, which becomes an init. It returns only after a failure.
func (t *Terminal) becomeInit(c *Call, words ...string) int {
	path, err := cmdline.Hinit()
	if err == nil {
		_, err = execBeside(filepath.Base(path), append([]string{"hinit", c.Verb.Name}, words...))
	}
	return t.Failed(c.Doing(), err)
}

// VersionVerb implements the command hinit version.
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
