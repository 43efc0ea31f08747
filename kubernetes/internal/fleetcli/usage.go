package fleetcli

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"
)

// usage lists the commands.
func usage(w io.Writer) {
	fmt.Fprintln(w, "usage: hinit-fleet COMMAND [-n NAMESPACE] [-kubeconfig FILE]")
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, name := range slices.Sorted(maps.Keys(verbs)) {
		fmt.Fprintf(t, "  %s %s\t%s\n", name, verbs[name].args, verbs[name].doing)
	}
	_ = t.Flush() // the writer is a terminal
}
