// Package bare has the functions for code that runs before the Go runtime: system calls, the words of the command line, and
// text.
//
// A binary begins with such code if it is linked with -E and a symbol that jumps to hinit_bare, see package entry. There is
// no heap, no growing stack and no garbage collector yet. The functions also work in a running program. The package owns no
// goroutine.
package bare
