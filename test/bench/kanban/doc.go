// Package kanban measures a pass of the task board's dispatcher on boards of 10,000 and 200,000 tasks. In the same run, Python's
// SQLite makes the same queries on the same file, for comparison:
//
//	go test -run '^$' -bench Tick -benchtime 50x ./test/bench/kanban
//
// The board has 100 ready tasks of 20 profiles, 20 running ones, 2,000 that wait for a parent and 500 blocked ones. The others
// are done, with their runs and events. The package owns no goroutine.
package kanban
