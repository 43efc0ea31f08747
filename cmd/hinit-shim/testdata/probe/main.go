// Command probe is the agent's program in the tests of the shim. It prints its user, arguments and environment.
package main

import (
	"fmt"
	"os"
)

func main() {
	groups, _ := os.Getgroups()
	cwd, _ := os.Getwd()
	fmt.Printf("%d:%d %v %s %s %q\n", os.Getuid(), os.Getgid(), groups, os.Getenv("HOME"), cwd, os.Args)
	if len(os.Args) > 1 && os.Args[1] == "config" {
		if err := os.WriteFile("/opt/data/config.yaml", nil, 0o644); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(len(os.Args) - 1)
}
