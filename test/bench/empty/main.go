// Command empty does nothing. No program written in Go can be faster, so the benchmarks compare with its run time. It owns no
// goroutine.
package main

func main() {}
