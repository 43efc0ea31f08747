// Command build builds the programs of a test cluster into the cache, where they are not there already, and
// prints their directory. It owns no goroutine.
package main

import (
	"fmt"
	"os"

	"hinit/kubernetes/internal/cluster"
)

func main() {
	bin, err := cluster.Build(os.Stderr)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(bin)
}
