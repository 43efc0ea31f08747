// Package script_test runs the scenarios in testdata against the real hinit as PID 1 of its own PID namespace. Some of them
// run a second time below another PID 1, where hinit has to be a subreaper (docker run --init).
//
// Every init under test runs in a PID and mount namespace that ends with this process or with the scenario. So no failure
// leaves a process behind. No test waits by sleeping: each wait polls a condition and has a deadline. Where namespaces are
// not permitted, the scenarios are skipped, or fail if CI=true.
//
// For each container under test, the package owns a goroutine on the thread that started the namespace, and one for each
// output stream. They end with the namespace.
package script_test
