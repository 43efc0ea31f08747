// Command testproc plays the roles of package testproc, and of [proc.LimitsName], for test binaries that take long to start. It
// owns no goroutines.
package main

import (
	"fmt"
	"os"

	"hinit/internal/proc"
	"hinit/internal/proc/limits"
	"hinit/internal/testproc"
)

func main() {
	testproc.Main()
	if os.Args[0] == proc.LimitsName {
		code, err := limits.Main(os.Args)
		fmt.Fprintln(os.Stderr, err)
		os.Exit(code)
	}
}
