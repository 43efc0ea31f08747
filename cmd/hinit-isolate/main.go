// Command hinit-isolate isolates itself and becomes the command after "--". PID 1 starts it in the place of a gateway whose
// profile has isolation. It owns no goroutine.
//
// The settings below keep the Go runtime from reading the limits of the cgroup at each start, see cmd/hinit-shim.
//
//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0
package main

import (
	"os"

	"hinit/internal/isolation/confine"
)

func main() { os.Exit(confine.Main(os.Args, os.Environ())) }
