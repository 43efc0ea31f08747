// Package applet has hinit's versions of the tools of s6. The name in argv[0] selects one.
//
// s6-svc, s6-svstat, s6-svwait, s6-svok and s6-svscanctl ask PID 1 through the control socket. s6-log, s6-setuidgid, s6-envdir,
// s6-tai64nlocal and with-contenv don't connect to it.
//
// Texts and exit codes are the same as in s6. docs/reference/s6-tools.md lists the differences with their reasons.
//
// No applet starts or waits for a process. s6-log has one goroutine that writes signals as bytes to a pipe and ends with the
// process. A wait for several services has one goroutine each, which ends with that wait or the process.
package applet
