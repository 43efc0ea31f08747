// Package top is hinit top: a screen that shows what all services do, and gives orders to them. It is a program of its own beside
// hinit, and a client of the control API; PID 1 links nothing of it.
//
// It promises to leave the terminal as it was, however it ends. It writes no unescaped text of a service, a profile or a log, and
// goes on while hinit does not answer. Package model is the screen without a terminal, package frame its drawing, package feed
// its sources. The goroutine of the terminal library owns the model. The others, one for each source that is followed and one for
// each order under way, send it messages and end with the screen.
package top
