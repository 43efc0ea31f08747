// Package bare provides functions for code that runs before the Go runtime: for system calls, the words of the command line, and
// text.
//
// A binary starts in its own function if it is linked with -E and a symbol that jumps to hinit_bare, see package entry. Such code
// has no heap, no growing stack and no garbage collector. The functions also work in a running program. The package owns no
// goroutine.
package bare
