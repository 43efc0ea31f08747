// Package top is `hinit top`: a screen that shows the state of all services and sends the user's orders to them. It is a separate
// program and a client of the control API; PID 1 contains none of its code.
//
// However the program ends, it restores the terminal. It escapes all text that comes from a service, a profile or a log. While
// hinit does not answer, the screen stays usable.
//
// Package model is the screen without a terminal, package frame draws it, and package feed reads the data sources. The goroutine
// of the terminal library owns the model. Each data source and each order in progress has a goroutine that sends messages to this
// goroutine. All of them end with the screen.
package top
