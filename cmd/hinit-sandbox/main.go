package main

import (
	"fmt"
	"os"
	"syscall"

	"hinit/internal/cmdline"
	"hinit/sandbox"
	"hinit/sandbox/program"
)

func main() { os.Exit(program.Program{Engine: openEngine}.Run(os.Args)) }

// openEngine returns Docker. If another engine is configured, it executes the program for this engine instead, which is
// installed next to this program and has the same command line.
func openEngine(address string) (sandbox.FullEngine, error) {
	switch name := os.Getenv("HINIT_SANDBOX_ENGINE"); name {
	case "", "docker":
		return sandbox.Docker(address)
	case "kubernetes":
		path, err := cmdline.Beside("hinit-sandbox-kubernetes")
		if err == nil {
			err = syscall.Exec(path, os.Args, os.Environ())
		}
		return nil, fmt.Errorf("cannot run %s for HINIT_SANDBOX_ENGINE=kubernetes: %w; kubernetes/Dockerfile makes an image that has it", path, err)
	default:
		return nil, &sandbox.OptionError{Name: "HINIT_SANDBOX_ENGINE", Value: name, Want: "docker or kubernetes"}
	}
}
