// Command naive is a first version of an exec shim in Go. It becomes the user of its first argument with the calls of the
// standard library, and then the program of the second. The benchmark compares hinit-shim with it. It owns no goroutine.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"
)

func main() {
	if err := become(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "naive:", err)
		os.Exit(1)
	}
}

func become(argv []string) error {
	id, err := strconv.Atoi(argv[0])
	if err != nil {
		return err
	}
	if err := syscall.Setgroups(nil); err != nil {
		return err
	}
	if err := syscall.Setgid(id); err != nil {
		return err
	}
	if err := syscall.Setuid(id); err != nil {
		return err
	}
	program, err := exec.LookPath(argv[1])
	if err != nil {
		return err
	}
	return syscall.Exec(program, argv[1:], os.Environ())
}
