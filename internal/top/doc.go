// Package top is hinit top: a screen that shows the state of all services and gives orders to them. It is a separate program
// beside hinit and a client of the control API. None of its code is linked into PID 1.
//
// It restores the terminal, however it ends. It escapes all text of a service, a profile or a log before it writes it. It goes on
// while hinit does not answer. Package model is the screen without a terminal, package frame draws it, and package feed reads its
// sources. The goroutine of the terminal library owns the model. There is one goroutine for each source and one for each order in
// progress. They send messages to the model and end with the screen.
package top
