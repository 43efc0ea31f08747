// Package bare has functions for code that runs before the Go runtime: system calls, the words of the command line, and text.
//
// A binary begins with such code if it is linked with -E and a symbol that jumps to hinit_bare, see package entry. At that
// time there is no heap, no growing stack and no garbage collector. The functions also work after the start of the runtime.
// The package owns no goroutine.
package bare
