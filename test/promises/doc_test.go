// Package promises_test tries to break the promises of hinit. It runs the real binary as PID 1 of its own namespaces. It
// attacks the binary as a machine or a user might, and compares its behaviour with the promise. The page
// docs/reference/promises.md lists each promise with its test, and how often the test has run.
//
// Two binaries are under test: the one that is shipped, and one with the package internal/faultinject, which makes system
// calls fail. By default every test has a short form, for "make test". With "-args -full" ("make promises"), the tests run as
// often as the page says, and print the page; with -write they also write it. Random tests print their seed; -seed repeats a
// run.
//
// Every init runs in a PID and mount namespace that ends with this process. For each container the package owns a goroutine
// on the thread that started the namespace, and one for each output stream. They end with the namespace.
package promises_test
