// Package bench measures what the project promises in numbers, on the binary as it is shipped, in a PID namespace of its own.
// Other measures, and other inits, are in the command compare below it, and the log path is in log. The tests here are:
//
//	go test -run '^$' -bench BootForeign -benchtime 1x ./test/bench
//	go test -run '^$' -bench Isolated -benchtime 1x ./test/bench
//
// It needs root, and skips without. It owns no goroutine.
package bench
