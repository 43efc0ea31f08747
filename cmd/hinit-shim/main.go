// Command hinit-shim is installed as the agent's command line, first on PATH: it drops root and becomes the real program. See
// package shim. It has no options of its own, because every argument belongs to the agent. It starts no goroutine.
//
// The settings below keep the Go runtime from reading the mounts and the limits of the cgroup at each start. It would use them to
// choose its number of threads, and the shim needs one.
//
//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0
package main

import (
	"os"

	"hinit/shim"
)

func main() { os.Exit(shim.Main(os.Args, os.Environ())) }
