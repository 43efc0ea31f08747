// Package bare is what a program can use before the Go runtime begins: system calls, the words of its command line, text.
//
// A binary that is linked with -E and a symbol that jumps to hinit_bare begins in a function of its own, see package entry. The code has
// no heap, no growing stack and no garbage collector. It works in a running program too. It owns no goroutine.
package bare
