// Package actions runs the commands and sends the web requests that hinit.yaml lists under "on" for events of services. An
// event is a change in the status of a service, such as a crash loop. A state file records the reported events and the due
// deliveries. So each due action is carried out at least once, even if the program is killed.
//
// The package is a client of PID 1 and runs in another process. Its actions are of the type config.Action; the type Action of
// package supervisor means something else. It owns one goroutine for each target (a webhook or command) with a due delivery.
package actions
