// Package tools is the part of the command line that people use at a keyboard and PID 1 does not need. Each file has one verb. Only
// hinit-tools links it. Some verbs own goroutines, which end with them.
package tools

import (
	"slices"

	"hinit/internal/boot"
	"hinit/internal/boot/lookup"
	"hinit/internal/cli"
	"hinit/internal/config"
)

// Main runs the verb that args name, and returns the exit code of the process.
func Main(args []string) int {
	own := slices.DeleteFunc(table(), func(v cli.Verb) bool { return !slices.ContainsFunc(verbs(), v.Is) })
	return cli.NewTerminal().Run(args, own)
}

// verbs are the commands of hinit-tools. Package cli has their summaries.
func verbs() []cli.Verb {
	return []cli.Verb{
		explainVerb, treeVerb, profileVerb, topologyVerb, logsVerb, eventsVerb, reloadVerb, signalVerb, checksVerb, drainVerb, shellVerb, configVerb, doctorVerb, isolateVerb, notifyVerb, waitVerb, reexecVerb, runOnceVerb, seedVerb, demoVerb, bundleVerb(table), completionVerb(table), manVerb(table),
	}
}

// words makes the Run function of a verb without its own flags. run gets the arguments, whose number the limits allow.
func words(atLeast, atMost int, run func(t *cli.Terminal, c *cli.Call, words []string) int) func(*cli.Terminal, *cli.Call) int {
	return func(t *cli.Terminal, c *cli.Call) int {
		words, code, ok := c.Parse(t, atLeast, atMost)
		if !ok {
			return code
		}
		return run(t, c, words)
	}
}

// agentOf returns the configuration that hinit would read here, and the agent's user in it.
func agentOf(t *cli.Terminal) (cfg *config.Config, agent boot.Agent, err error) {
	if cfg, err = t.Config(); err == nil {
		agent, err = lookup.Agent(cfg)
	}
	return cfg, agent, err
}

// table returns the whole command line of hinit, with the commands of this package in their places.
func table() []cli.Verb {
	all := cli.Verbs(cli.Init{})
	for _, v := range verbs() {
		at := slices.IndexFunc(all, v.Is)
		v.Summary = all[at].Summary
		all[at] = v
	}
	return all
}
