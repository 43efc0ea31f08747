// Package applet has hinit's versions of the tools of s6, in one program. The name in argv[0] selects the tool.
//
// s6-svc, s6-svstat, s6-svwait, s6-svok and s6-svscanctl send requests to PID 1 through the control socket. s6-log, s6-setuidgid,
// s6-envdir, s6-tai64nlocal and with-contenv don't connect to PID 1.
//
// Texts and exit codes are the same as in s6. docs/reference/s6-tools.md lists the differences with their reasons.
//
// No tool starts a process or waits for one. s6-log has one goroutine that writes signals as bytes to a pipe, until the process
// ends. A wait for several services has a goroutine for each service, which ends with the wait or with the process.
package applet
