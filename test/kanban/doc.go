// Package kanban holds the tests of the finished task board: hinit as PID 1 of a PID namespace, the service kanban, and the
// workers of the example agent. With -args -full they are as large as they are meant to be. It owns no goroutine.
package kanban
