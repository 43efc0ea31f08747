package dial

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

	"hinit/client"
)

// Find is [Dial] for the init of this container. socket is the configured path, or "". env looks up environment variables.
func Find(socket string, env func(string) (string, bool)) (*Client, error) {
	return Dial(Sockets(socket, env, os.Geteuid()))
}

// Sockets returns the places where a client looks for the control socket, in the order in which an init chooses its place. uid is
// the client's effective user. The list has the places of the client's user, of root and of the owner of process 1. It leaves out
// places whose directory belongs to another user. A socket in the list may be missing or dead. Any user of the network namespace can
// take an abstract name ("@…"): a client must check the server's credentials (SO_PEERCRED), as Dial does.
func Sockets(socket string, env func(string) (string, bool), uid int) []string {
	trusted := []int{uid, 0}
	if owner, ok := ownerOf("/proc/1"); ok {
		trusted = append(trusted, owner)
	}
	var sockets []string
	for _, user := range trusted {
		for _, path := range client.Places(socket, env, user) {
			owner, exists := ownerOf(filepath.Dir(path))
			if exists && !slices.Contains(trusted, owner) || slices.Contains(sockets, path) {
				continue
			}
			sockets = append(sockets, path)
		}
	}
	for _, path := range sockets { // for a debug container beside the init's: kubectl debug --target
		if !sameRoot(1) {
			sockets = append(sockets, processRoot(1)+path)
		}
	}
	if name := client.AbstractSocket(); name != "" {
		sockets = append(sockets, name)
	}
	return sockets
}

func processRoot(pid int) string { return "/proc/" + strconv.Itoa(pid) + "/root" }

// sameRoot reports whether a process has the same root directory as this one. It is true if the kernel does not say.
func sameRoot(pid int) bool {
	own, err := os.Stat("/")
	other, err2 := os.Stat(processRoot(pid) + "/")
	return err != nil || err2 != nil || os.SameFile(own, other)
}

// ownerOf returns the owner of a file or link, and whether it exists.
func ownerOf(path string) (uid int, exists bool) {
	info, err := os.Lstat(path)
	if err != nil {
		return 0, false
	}
	return int(info.Sys().(*syscall.Stat_t).Uid), true
}
