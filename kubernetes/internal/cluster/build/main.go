// Command build builds the programs of a test cluster into the cache, where they are not there already. It owns no goroutine.
package main

import (
	"fmt"
	"os"

	"hinit/kubernetes/internal/cluster"
)

func main() {
	if err := cluster.Build(os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
