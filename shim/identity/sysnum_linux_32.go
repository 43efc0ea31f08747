//go:build linux && (386 || arm)

package identity

import "golang.org/x/sys/unix"

// On 32-bit systems, the system calls without "32" in their names take 16-bit ids.
const (
	sysSetresuid = unix.SYS_SETRESUID32
	sysSetresgid = unix.SYS_SETRESGID32
)
