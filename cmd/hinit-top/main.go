// Command hinit-top is the screen that shows all services and gives orders to them: hinit top. It dispatches to package top and
// does nothing else; it owns no goroutine.
package main

import (
	"os"

	"hinit/internal/top"
)

func main() { os.Exit(top.Main(os.Args[1:])) }
