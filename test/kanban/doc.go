// Package kanban tests the finished task board: hinit as PID 1 of a PID namespace, the service kanban, and the workers of the
// example agent. With -args -full, the tests have their full size. The package owns no goroutine.
package kanban
