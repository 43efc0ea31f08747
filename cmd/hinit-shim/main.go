// Command hinit-shim is installed under the name of the agent's program, first on PATH. It gives up root and then executes the
// real program, see package shim. It has no options of its own, because every argument belongs to the agent. It starts no
// goroutine.
//
// The settings below keep the Go runtime from reading the mounts and the cgroup's limits at each start. The runtime would use
// these to choose its number of threads, but the shim needs only one.
//
//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0
package main

import (
	"os"

	"hinit/shim"
)

func main() { os.Exit(shim.Main(os.Args, os.Environ())) }
