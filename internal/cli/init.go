package cli

// Init is how this process becomes an init. Both return the exit code of the process when the init has ended.
type Init struct {
	Container func(argv0 string, args []string) int // that of a container, with its CMD
	Plain     func(file string) int                 // a plain supervisor of what a configuration names, "" for the usual places
}

func initVerb(be Init) verb {
	return verb{
		name: "init", args: "[--] [CMD...]", summary: "be the init: PID 1 of a container, or a subreaper elsewhere",
		help: `Called as /init or tini, hinit does this without being told. Everything after init is the
container's CMD: an executable is run as it is, anything else is given to the agent,
"gateway run" supervises the gateway, and no words at all start the agent.`,
		run: func(t *terminal, c *call) int {
			if len(c.raw) == 1 && (c.raw[0] == "--help" || c.raw[0] == "-h") {
				c.described().Usage(c.flags, t.out)
				return exitDone
			}
			return be.Container("hinit", c.raw)
		},
	}
}

func runVerb(be Init) verb {
	return verb{
		name: "run", doing: "run the services", args: "[-c FILE]", summary: "be a plain supervisor: the services of hinit.yaml and nothing else",
		help: `There is no CMD, no agent, no profile and no data volume. Services run as the user who calls, unless
"user:" says otherwise. SIGTERM and Ctrl-C stop them; the exit code is 0 then. SIGHUP reads the file again.
Without -c the file is the one that HINIT_CONFIG names, hinit.yaml here, or /etc/hinit/hinit.yaml.`,
		run: func(t *terminal, c *call) int {
			file := c.flags.String("c", "", "read this `FILE`")
			if _, code, ok := c.parse(t, 0, 0); !ok {
				return code
			}
			return be.Plain(*file)
		},
	}
}
