// Package kanban measures a pass of the task board's dispatcher on boards of 10,000 and 200,000 tasks. Beside it Python's SQLite
// asks the same file the same questions in the same run:
//
//	go test -run '^$' -bench Tick -benchtime 50x ./test/bench/kanban
//
// The board has 100 ready tasks of 20 profiles, 20 running ones, 2,000 that wait for a parent and 500 blocked ones. The rest is
// done, with its runs and events. It owns no goroutine.
package kanban
