// Package applet is the tools of s6 as hinit has them, each chosen by the name it is called by.
//
// Those that control or query a service (s6-svc, s6-svstat, s6-svwait, s6-svok, s6-svscanctl) ask PID 1 through the
// control socket, so that what they say is what `hinit status` says. The others (s6-log, s6-setuidgid, s6-envdir,
// s6-tai64nlocal, with-contenv) are filters and changes of state that end in another program; they never connect. The
// agent's lifecycle commands, which its shim hands over, are here too.
//
// Texts and exit codes are those of s6: 100 wrong usage, 111 a system call failed, 99 a wait was too long, 126 and 127 a
// program could not be run, 1 the answer is no. What differs is in docs/reference/s6-tools.md, with the reason.
//
// No applet starts or waits for a process. s6-log has one goroutine that turns signals into bytes of a pipe and ends with
// the process; a wait for several services has a goroutine for each, which ends with its service's wait or the process.
package applet
