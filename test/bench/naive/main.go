// Command naive is the simplest exec shim in Go, with which the benchmark compares hinit-shim. It becomes the user in its first
// argument by calls of the standard library, and then executes the program in the second. It owns no goroutine.
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
