// Package promises_test tries to break what hinit promises: it runs the real binary as PID 1 of namespaces of its own, does to
// it what a machine, a user or a bad day might, and compares what it does with what was promised. docs/reference/promises.md
// is the sheet: which test tries to break which promise, and how often it has tried.
//
// Two binaries are under test: hinit as it is shipped, and one with the package internal/fault in it, which makes calls of the
// kernel fail. By default every test has a short form, for "make test". With "-args -full" ("make promises") they do all that
// the sheet says, and print it; with -write they write the sheet too. What is random has a seed, which is printed; -seed
// repeats it.
//
// Every init lives in a PID and mount namespace that dies with this process. A box owns goroutines: one that its namespace is
// bound to, and one for each output stream; they end with the namespace.
package promises_test
