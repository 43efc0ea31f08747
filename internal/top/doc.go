// Package top is hinit top: a screen that shows what all services do, and gives orders to them. It is a program of its own beside
// hinit, and a client of the control API; PID 1 links nothing of it.
//
// It promises to leave the terminal as it was, however it ends, to write nothing to it that a service, a profile or a log chose, and
// to go on while hinit does not answer. Package model is the screen without a terminal, package frame what it draws, package feed
// what it learns. The goroutine of the terminal library owns the model; the others, one for each thing that is followed and one for
// each order under way, send it messages and end with the screen.
package top
