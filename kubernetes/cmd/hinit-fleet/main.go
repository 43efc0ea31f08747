// Command hinit-fleet manages a fleet: agents in many pods of a Kubernetes cluster. Its verb controller decides which pod
// runs which agent. Its verb host runs in each pod and carries the decisions out. The other verbs are for users. All
// goroutines belong to package fleetcli.
package main

import (
	"os"

	"hinit/kubernetes/internal/fleetcli"
)

func main() { os.Exit(fleetcli.Main(os.Args, os.Stdout, os.Stderr)) }
