// Package s6 compares hinit with the real s6.
//
// The same shell scripts run twice, each time in a directory of their own: once with the tools of Debian's package s6 on PATH,
// once with hinit's. Output, exit codes and files must be equal, except for a table of known differences with their reasons. One
// test also moves a volume from s6 to hinit and back. Without s6, the tests are skipped; with CI=true they fail. The package owns
// no goroutine.
package s6
