// Command hinit-sandbox-helper starts the commands of a sandbox. It runs inside the sandbox's container.
//
//	hinit-sandbox-helper serve ID          listen and serve until the container ends
//	hinit-sandbox-helper attach ID         connect standard input and output to the server; start the server if necessary
//	hinit-sandbox-helper gate CMD...       wait until the mounts are checked from outside, then execute the command (package gate)
//	hinit-sandbox-helper gate-init CMD...  the same, with this process as the init of the command
//	hinit-sandbox-helper init CMD...       run the command with this process as its init, without a gate
//	hinit-sandbox-helper check PATH...     print whether process 1 waits and what is mounted; open the gate if the answer is go
//
// Package sandbox starts this program; people don't call it. Its goroutines are in package inside.
package main

import (
	"errors"
	"fmt"
	"os"

	"hinit/sandbox/gate"
	"hinit/sandbox/inside"
)

func main() {
	if len(os.Args) < 2 {
		os.Args = append(os.Args, "")
	}
	code, err := run(os.Args[1], os.Args[2:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "hinit-sandbox-helper:", err)
		os.Exit(max(code, 1))
	}
	os.Exit(code)
}

func run(verb string, args []string) (code int, err error) {
	switch {
	case verb == "gate":
		return 0, gate.Wait(args)
	case verb == "gate-init", verb == "init":
		return gate.Init(args, verb == "gate-init")
	case verb == "check":
		return 0, gate.Check(args, os.Stdin, os.Stdout)
	case verb == "serve" && len(args) == 1:
		if err = inside.Serve(args[0]); errors.Is(err, inside.ErrServed) {
			err = nil
		}
	case verb == "attach" && len(args) == 1:
		err = inside.Attach("/proc/self/exe", []string{"serve", args[0]}, os.Stdin, os.Stdout)
	default:
		return 2, errors.New("cannot run by itself: package sandbox starts it inside a container")
	}
	return 0, err
}
