// Command empty does nothing. Its run time is the floor under every program written in Go. It owns no goroutine.
package main

func main() {}
