// Command hinit-fleet is the fleet: agents of many pods by the means of Kubernetes. Its verb controller decides which pod has which agent. Its
// verb host works in each pod, as a service of hinit. The other verbs are for people. It owns no goroutine of its own.
package main

import (
	"os"

	"hinit/kubernetes/internal/fleetcli"
)

func main() { os.Exit(fleetcli.Main(os.Args, os.Stdout, os.Stderr)) }
