// Package promises_test tries to break the promises of hinit. It runs the real binary as PID 1 of namespaces of its own. It
// attacks the binary as a machine or a user might, and compares its behaviour with the promise. docs/reference/promises.md is the
// sheet: it names the test of each promise, and how often it has tried.
//
// Two binaries are under test: hinit as it is shipped, and one with the package internal/faultinject in it, which makes calls of the
// kernel fail. By default every test has a short form, for "make test". With "-args -full" ("make promises") they do all that the
// sheet says, and print it; with -write they write the sheet too. Random tests print their seed; -seed repeats it.
//
// Every init lives in a PID and mount namespace that dies with this process. A box owns goroutines: one that its namespace is
// bound to, and one for each output stream; they end with the namespace.
package promises_test
