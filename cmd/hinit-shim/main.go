// Command hinit-shim is installed as the agent's command line, first on PATH: it drops root and becomes the real program.
// See package shim; it has no options of its own, as every argument is the agent's. Under the name hinit it is the short way to
// the init instead; see package quick. It starts no goroutine.
//
// The runtime would read the limits of the cgroup, and the list of mounts to find it, for work in parallel that there isn't.
//
//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0
package main

import (
	"os"

	_ "hinit/internal/entry" // where the process begins
	"hinit/internal/quick"
	"hinit/shim"
)

func main() {
	if quick.Is(os.Args) {
		os.Exit(quick.Main(os.Args, os.Environ()))
	}
	os.Exit(shim.Main(os.Args, os.Environ()))
}
