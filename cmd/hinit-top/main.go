// Command hinit-top is the screen that shows and controls all services; it is the program behind `hinit top`. It only calls
// package top. It owns no goroutine.
package main

import (
	"os"

	"hinit/internal/top"
)

func main() { os.Exit(top.Main(os.Args[1:])) }
