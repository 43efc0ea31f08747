//go:build linux && (386 || arm)

package identity

import "golang.org/x/sys/unix"

// The calls without "32" take 16-bit ids on these systems.
const (
	sysSetresuid = unix.SYS_SETRESUID32
	sysSetresgid = unix.SYS_SETRESGID32
)
