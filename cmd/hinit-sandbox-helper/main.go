// Command hinit-sandbox-helper is the program that starts the commands of a sandbox, inside its container.
//
//	hinit-sandbox-helper serve ID     listen and serve until the container ends
//	hinit-sandbox-helper attach ID    join standard input and output with the one that serves; start it if need be
//	hinit-sandbox-helper gate CMD...  wait until somebody outside has looked at the mounts, then become the command (package gate)
//	hinit-sandbox-helper gate-init CMD...  the same, and be the command's init
//	hinit-sandbox-helper waits  say whether the first process still waits
//	hinit-sandbox-helper unpack DIR  unpack the archive on standard input
//	hinit-sandbox-helper check PATH...  show what is mounted, and open the gate if the answer is go
//
// People don't run it. Package inside starts its goroutines.
package main

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"hinit/sandbox/archive"
	"hinit/sandbox/gate"
	"hinit/sandbox/inside"
)

func main() {
	if len(os.Args) > 1 && slices.Contains([]string{"gate", "gate-init", "waits", "check"}, os.Args[1]) {
		code, err := atGate(os.Args[1], os.Args[2:])
		fail(err)
		os.Exit(code)
	}
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "hinit-sandbox-helper: cannot run by itself: package sandbox starts it inside a container")
		os.Exit(2)
	}
	var err error
	switch verb, id := os.Args[1], os.Args[2]; verb {
	case "serve":
		if err = inside.Serve(id); errors.Is(err, inside.ErrServed) {
			return
		}
	case "unpack":
		if err = archive.Unpack(os.Stdin, id); err == nil {
			fmt.Println("unpacked")
		}
	case "attach":
		err = inside.Attach("/proc/self/exe", []string{"serve", id}, os.Stdin, os.Stdout)
	default:
		err = fmt.Errorf("cannot do %q: it is serve, attach or unpack", verb)
	}
	fail(err)
}

func atGate(verb string, args []string) (code int, err error) {
	switch verb {
	case "gate":
		return 0, gate.Wait(args)
	case "gate-init":
		return gate.Init(args)
	case "waits":
		_, err = os.Stdout.WriteString(gate.State())
		return 0, err
	}
	return 0, gate.Check(args, os.Stdin, os.Stdout)
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "hinit-sandbox-helper:", err)
		os.Exit(1)
	}
}
