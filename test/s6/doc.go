// Package s6 compares hinit with s6 itself.
//
// The same shell scripts run twice in directories of their own: once with the tools of Debian's package s6 on PATH, once with
// hinit's. Their output, exit codes and files must be the same, except for a table of known differences, each with its reason. A
// volume also goes from one to the other and back. Where s6 isn't installed the tests are skipped; with CI=true it has to be
// there.
//
// Each test runs in a goroutine of package testing; the package has none of its own.
package s6
