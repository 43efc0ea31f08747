// Package actions runs the commands and sends the web requests that hinit.yaml lists under "on", after events of services. It is a
// client of PID 1, outside it. The actions of the supervisor's machine are in package supervisor. It owns one goroutine for each target that has something waiting, so that none holds up another.
//
// An event is a change of what the status says. A file keeps the events that were seen and the deliveries that are due. So a due
// action is carried out at least once, also when the program is killed.
package actions
