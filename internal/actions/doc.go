// Package actions runs the commands and sends the web requests that hinit.yaml lists under "on" for events of services. An event
// is a change in the status of a service, such as a crash loop. A state file records which events were seen and which deliveries
// are due, so each due action runs at least once, even if the program is killed.
//
// The package is a client of PID 1 and runs in another process. It does not use the type Action of the supervisor's state
// machine (package supervisor). It owns one goroutine for each target, a webhook or command, that has a delivery due.
package actions
