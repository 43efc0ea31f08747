// Package applet has hinit's versions of the tools of s6, all in one program. The name in argv[0] selects the tool.
//
// s6-svc, s6-svstat, s6-svwait, s6-svok and s6-svscanctl send requests to PID 1 through the control socket. s6-log, s6-setuidgid,
// s6-envdir, s6-tai64nlocal and with-contenv don't connect to PID 1.
//
// The tools print the same texts and return the same exit codes as in s6. docs/reference/s6-tools.md lists the exceptions with
// their reasons.
//
// No tool starts a process or waits for one. s6-log has one goroutine that writes each signal as a byte to a pipe; it ends with
// the process. A wait for several services has one goroutine for each service, which ends with the wait or with the process.
package applet
