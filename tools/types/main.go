// Command types checks the types of all packages and their tests in a directory, for the architecture in the environment variable
// GOARCH. It prints each error. It reads source files only, while go build would compile all dependencies for that
// architecture.
package main

import (
	"fmt"
	"os"

	"golang.org/x/tools/go/packages"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: types DIRECTORY")
		os.Exit(2)
	}
	const mode = packages.NeedName | packages.NeedFiles | packages.NeedCompiledGoFiles | packages.NeedImports | packages.NeedDeps |
		packages.NeedTypes | packages.NeedSyntax | packages.NeedTypesInfo | packages.NeedTypesSizes
	all, err := packages.Load(&packages.Config{Mode: mode, Dir: os.Args[1], Tests: true}, "./...")
	if err != nil {
		fmt.Fprintln(os.Stderr, "types:", err)
		os.Exit(1)
	}
	if len(all) == 0 || packages.PrintErrors(all) > 0 {
		os.Exit(1)
	}
}
