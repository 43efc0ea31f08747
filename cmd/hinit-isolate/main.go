// Command hinit-isolate isolates its own process, and then executes the command after "--". PID 1 starts it instead of a
// gateway if the gateway's profile is isolated. It owns no goroutine.
package main

import (
	"os"

	"hinit/internal/isolation/confine"
)

func main() { os.Exit(confine.Main(os.Args, os.Environ())) }
