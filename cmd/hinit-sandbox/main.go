// Command hinit-sandbox runs commands of agents in containers (sandboxes) that are kept after a command has exited. It runs
// package program with the container engine that HINIT_SANDBOX_ENGINE selects. It owns no goroutine.
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

// openEngine returns the Docker engine at address. If HINIT_SANDBOX_ENGINE selects another engine, it replaces this process
// with the program for that engine. That program is in the same directory and takes the same arguments.
func openEngine(address string) (sandbox.FullEngine, error) {
	switch name := os.Getenv("HINIT_SANDBOX_ENGINE"); name {
	case "", "docker":
		return sandbox.Docker(address)
	case "kubernetes":
		path, err := cmdline.SiblingProgram("hinit-sandbox-kubernetes")
		if err == nil {
			err = syscall.Exec(path, os.Args, os.Environ())
		}
		return nil, fmt.Errorf("cannot run %s for HINIT_SANDBOX_ENGINE=kubernetes: %w; kubernetes/Dockerfile makes an image that has it", path, err)
	default:
		return nil, &sandbox.OptionError{Name: "HINIT_SANDBOX_ENGINE", Value: name, Want: "docker or kubernetes"}
	}
}
