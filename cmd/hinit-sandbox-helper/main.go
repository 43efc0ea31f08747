// Command hinit-sandbox-helper starts the commands of a sandbox. It runs inside the sandbox's container.
//
//	hinit-sandbox-helper serve ID               listen and serve until the container ends
//	hinit-sandbox-helper attach ID [DIR]        enter DIR, and connect standard input and output to the server; start the server if necessary
//	hinit-sandbox-helper gate DIR CMD...        wait until the mounts are checked from outside, then execute the command in DIR (package gate)
//	hinit-sandbox-helper gate-init DIR CMD...  the same, with this process as the init of the command
//	hinit-sandbox-helper check PATH...          print whether process 1 waits and what is mounted; open the gate if the answer is go
//	hinit-sandbox-helper mkdir DIR              create a working directory that the container's user may not create, but not in a mount
//
// Package sandbox starts this program; people don't call it. Its goroutines are in package inside.
package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

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
	case verb == "gate" && len(args) > 0:
		return 0, gate.WaitAndExec(args[0], args[1:])
	case verb == "gate-init" && len(args) > 0:
		return gate.WaitAndRunInit(args[0], args[1:])
	case verb == "mkdir" && len(args) == 1:
		return 0, gate.EnterDir(args[0], unix.RESOLVE_NO_XDEV)
	case verb == "check":
		return 0, gate.ServeCheck(args, os.Stdin, os.Stdout)
	case verb == "serve" && len(args) == 1:
		if err = inside.Serve(args[0]); errors.Is(err, inside.ErrAlreadyServed) {
			err = nil
		}
	case verb == "attach" && len(args) > 0:
		// The working directory of the serving program is the same directory.
		if err = gate.EnterDir(strings.Join(args[1:], ""), 0); err == nil {
			err = inside.Attach("/proc/self/exe", []string{"serve", args[0]}, os.Stdin, os.Stdout)
		}
	default:
		return 2, errors.New("cannot run by itself: package sandbox starts it inside a container")
	}
	return 0, err
}
