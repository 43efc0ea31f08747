// Command hinit-top is a screen that shows all services and controls them; it is the program behind hinit top. It only
// dispatches to package top. It owns no goroutine.
package main

import (
	"os"

	"hinit/internal/top"
)

func main() { os.Exit(top.Main(os.Args[1:])) }
