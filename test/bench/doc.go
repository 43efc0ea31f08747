// Package bench measures what the project promises in numbers, with the shipped binary in a PID namespace of its own. The command
// compare below it measures more, and compares with other inits; the command log measures the log path. The benchmarks here are:
//
//	go test -run '^$' -bench BootForeign -benchtime 1x ./test/bench
//	go test -run '^$' -bench Isolated -benchtime 1x ./test/bench
//	go test -run '^$' -bench 'Floor|Rest' -benchtime 1x ./test/bench
//
// Most need root, and are skipped without. The package owns no goroutine.
package bench
