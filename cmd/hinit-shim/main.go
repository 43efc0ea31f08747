// Command hinit-shim is installed as the agent's command line, first on PATH: it drops root and becomes the real program.
// See package shim; it has no options of its own, as every argument is the agent's. It starts no goroutine.
package main

import (
	"os"

	"hinit/shim"
)

func main() {
	os.Exit(shim.Main(os.Args, os.Environ()))
}
