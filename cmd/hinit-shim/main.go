// Command hinit-shim is installed under the name of the agent's program, first on PATH. It gives up root and then executes the
// real program, see package shim. It has no options of its own, because every argument belongs to the agent. It starts no
// goroutine.
package main

import (
	"os"

	"hinit/shim"
)

func main() { os.Exit(shim.Main(os.Args, os.Environ())) }
