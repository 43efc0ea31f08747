// Command empty does nothing. What it takes to run it is the floor under every program written in Go. It owns no goroutine.
package main

func main() {}
