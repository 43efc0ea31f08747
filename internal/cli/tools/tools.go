// Package tools has the table of all hinit commands. It implements the commands that need packages which package cli may not
// import. Each file has one verb, or a few related verbs, whose help is in the directory help of package cli. Only the program
// hinit-tools contains this package. The goroutines of a verb end with the verb.
package tools

import (
	"errors"
	"io"

	"hinit/internal/boot"
	"hinit/internal/boot/lookup"
	"hinit/internal/cli"
	"hinit/internal/cmdline"
	"hinit/internal/config"
)

// Main runs the verb that the arguments name, and returns the exit code.
func Main(args []string) int {
	return cmdline.RunWithOutput(func(out io.Writer) int { return cli.NewTerminal(out).Run(args, allVerbs()) })
}

// withArgs returns the Run function of a verb without flags. It parses the arguments, at least atLeast and at most atMost words,
// and calls run with them.
func withArgs(atLeast, atMost int, run func(t *cli.Terminal, c *cli.Call, words []string) int) func(*cli.Terminal, *cli.Call) int {
	return func(t *cli.Terminal, c *cli.Call) int {
		words, code, ok := c.Parse(t, atLeast, atMost)
		if !ok {
			return code
		}
		return run(t, c, words)
	}
}

// loadAgent reads the configuration that an init would use in this environment, and looks up the agent's user.
func loadAgent(t *cli.Terminal) (cfg *config.Config, agent boot.Agent, err error) {
	if st, err := t.Status(); err == nil && st.Init.ServicesFile != "" {
		return nil, agent, errNoAgent
	}
	if cfg, err = t.Config(); err == nil {
		agent, err = lookup.Agent(cfg)
	}
	return cfg, agent, err
}

// errNoAgent is the error of commands about the agent or its profiles under hinit run.
var errNoAgent = errors.New("hinit run hosts no agent and no profiles")

// allVerbs returns all commands of hinit, in the order of the help.
func allVerbs() []cli.Verb {
	return []cli.Verb{
		cli.InitVerb, cli.RunVerb, cli.StatusVerb, explainVerb, treeVerb,
		cli.LifecycleVerb("start", " [--force]", "start services, and wait until they are up"),
		cli.LifecycleVerb("stop", "", "stop services, and wait until none of their processes is left"),
		cli.LifecycleVerb("restart", " | --changed [--force]", "end the process of a service and start it again"),
		checksVerb, shellVerb, signalVerb, runOnceVerb, profileVerb, topologyVerb, logsVerb, eventsVerb, notifyVerb, drainVerb, waitVerb, reloadVerb, reexecVerb, configVerb,
		doctorVerb, isolateVerb, cli.HealthcheckVerb, cli.VersionVerb, seedVerb, demoVerb, bundleVerb(allVerbs), completionVerb(allVerbs), manVerb(),
		cli.CompanionVerb("import", "write hinit.yaml from the configuration of another supervisor"),
		cli.CompanionVerb("sandbox", "run an agent's commands in containers that last"),
		cli.CompanionVerb("kanban", "the task board: list, create, dispatch"),
		cli.CompanionOf("hinit-web", []string{"web"}, "web", "serve the status page and metrics"),
		cli.CompanionOf("hinit-web", []string{"forward"}, "forward", "send logs and events to where they are collected"),
		cli.CompanionOf("hinit-web", []string{"metrics"}, "metrics", "print metrics of hinit and its services, for Prometheus"),
		cli.CompanionVerb("top", "look after all services on one screen"),
	}
}
