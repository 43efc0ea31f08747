// Package top is `hinit top`: a screen that shows the state of all services and sends the user's orders to them. It is a program
// of its own and a client of the control API; PID 1 contains none of its code.
//
// The program restores the terminal, however it ends. It escapes all text of a service, a profile or a log. While hinit does not
// answer, the screen stays usable.
//
// Package model is the screen without a terminal, package frame draws it, and package feed reads its data sources. The goroutine
// of the terminal library owns the model. One goroutine for each data source and one for each order in progress send messages to
// it. All these goroutines end with the screen.
package top
