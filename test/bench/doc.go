// Package bench measures the numbers that the project promises, with the shipped binary in its own PID namespace. The command
// compare below it measures more, and compares hinit with other inits. The command log measures the log path. The benchmarks
// in this package are:
//
//	go test -run '^$' -bench BootForeign -benchtime 1x ./test/bench
//	go test -run '^$' -bench Isolated -benchtime 1x ./test/bench
//	go test -run '^$' -bench 'Floor|Rest' -benchtime 1x ./test/bench
//
// Most of them need root, and are skipped without it. The package owns no goroutine.
package bench
