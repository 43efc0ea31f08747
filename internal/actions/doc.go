// Package actions runs the commands and sends the web requests that hinit.yaml lists under "on", after events of services. It is
// a client of PID 1 and runs in another process. The actions of the supervisor's state machine are something else, see package
// supervisor. Package actions owns one goroutine for each target, a webhook or command, that has a delivery due.
//
// An event is a change in the status of a service. A file keeps the events that were seen and the deliveries that are due. So
// each due action runs at least once, even if the program is killed.
package actions
