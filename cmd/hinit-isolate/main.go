// Command hinit-isolate isolates its own process, and then executes the command after "--" in it. PID 1 starts it in place of a
// gateway whose profile is isolated. It owns no goroutine.
package main

import (
	"os"

	"hinit/internal/isolation/confine"
)

func main() { os.Exit(confine.Main(os.Args, os.Environ())) }
