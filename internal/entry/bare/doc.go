// Package bare has functions for code that runs before the Go runtime begins: system calls, the words of the command line, text.
//
// A binary begins in its own function if it is linked with -E and a symbol that jumps to hinit_bare, see package entry. Such code
// has no heap, no growing stack and no garbage collector. It works in a running program too. It owns no goroutine.
package bare
