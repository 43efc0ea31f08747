// Package script_test runs the scenarios of testdata against the real hinit as PID 1 of a PID namespace of its own. Some of them run
// a second time below another PID 1, where it has to be a subreaper (docker run --init).
//
// Every init under test lives in a PID and mount namespace that dies with this process or with the scenario. So no failure leaves
// a process behind. Nothing waits by sleeping: each wait polls a condition and has a deadline. Where namespaces are not permitted
// the scenarios are skipped, but fail when CI=true.
//
// A container under test owns goroutines: one that its namespace is bound to, one for each of its output streams. They end
// with the namespace.
package script_test
