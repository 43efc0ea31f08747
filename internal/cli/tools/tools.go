// Package tools is the part of the command line that people need at a keyboard and PID 1 never does. A file holds a verb. It is linked by
// hinit-tools alone. Some verbs own goroutines, which end with them.
package tools

import (
	"slices"

	"hinit/internal/cli"
)

// Main runs the verb that the arguments name, and returns the exit code of the process.
func Main(args []string) int {
	own := slices.DeleteFunc(table(), func(v cli.Verb) bool { return !slices.ContainsFunc(verbs(), v.Is) })
	return cli.NewTerminal().Run(args, own)
}

// verbs are the commands of hinit-tools. Their summaries stand in the table of package cli.
func verbs() []cli.Verb {
	return []cli.Verb{
		explainVerb(), treeVerb(), profileVerb(), topologyVerb(), logsVerb(), eventsVerb(), reloadVerb(), signalVerb(), checksVerb(), drainVerb(), shellVerb(), configVerb(), doctorVerb(), isolateVerb(), notifyVerb(), waitVerb(), reexecVerb(), runOnceVerb(), seedVerb(), demoVerb(), bundleVerb(table), completionVerb(table), manVerb(table),
	}
}

// table is the whole command line of hinit, with the commands of this package in their places.
func table() []cli.Verb {
	all := cli.Verbs(cli.Init{})
	for _, v := range verbs() {
		at := slices.IndexFunc(all, v.Is)
		v.Summary = all[at].Summary
		all[at] = v
	}
	return all
}
