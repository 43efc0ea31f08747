// Command build builds the programs of a test cluster that are not in the cache yet, and prints their directory. With -short
// it leaves out the programs that only a few tests need. It owns no goroutine.
package main

import (
	"flag"
	"fmt"
	"os"

	"hinit/kubernetes/internal/cluster"
)

func main() {
	short := flag.Bool("short", false, "leave out the programs that few tests need")
	flag.Parse()
	bin, err := cluster.Build(os.Stderr, *short)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(bin)
}
