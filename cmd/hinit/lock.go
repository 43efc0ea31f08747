package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// lockPatience is how long the data directory may take to tell which one it is.
const lockPatience = time.Second

// claimHome makes this init the only one that supervises the profiles of a data directory, as far as can be known: among
// all that share its network namespace, which is those of the container and of its pod. An abstract socket named after the
// directory is the lock, because the kernel lets go of it with the process, whereas a lock file on shared storage can
// outlive its container. claim is nil when there is none, because there is no such directory or it does not answer; it lasts
// until it is closed. It returns an error only when another init has the claim.
func claimHome(home string) (claim *net.UnixListener, err error) {
	found := make(chan *unix.Stat_t, 1)
	go func() { // the disk may hang
		var st unix.Stat_t
		if unix.Stat(home, &st) != nil {
			found <- nil
			return
		}
		found <- &st
	}()
	var st *unix.Stat_t
	select {
	case st = <-found:
	case <-time.After(lockPatience):
	}
	if st == nil {
		return nil, nil
	}
	addr := &net.UnixAddr{Net: "unix", Name: fmt.Sprintf("@hinit-home-%d-%d", st.Dev, st.Ino)}
	l, err := net.ListenUnix("unix", addr)
	if err == nil {
		return l, nil
	}
	if !errors.Is(err, syscall.EADDRINUSE) {
		return nil, nil
	}
	pid, uid, err := listenerOf(addr)
	if err != nil || uid != 0 && uid != uint32(os.Geteuid()) {
		return nil, nil // somebody else has taken the name, who could not supervise for us
	}
	return nil, fmt.Errorf("another hinit (pid %d) supervises the profiles in %q", pid, home)
}

// listenerOf asks the kernel who listens on a socket (unix(7), SO_PEERCRED).
func listenerOf(addr *net.UnixAddr) (pid int32, uid uint32, err error) {
	c, err := net.DialUnix("unix", nil, addr)
	if err != nil {
		return 0, 0, err
	}
	defer c.Close()
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, 0, err
	}
	var cred *unix.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) {
		cred, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err = errors.Join(err, failed); err != nil {
		return 0, 0, err
	}
	return cred.Pid, cred.Uid, nil
}
