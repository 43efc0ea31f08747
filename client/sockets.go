package client

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
)

// socketName is the file name of the control socket, and runtimeDir the default directory.
const (
	socketName = "control.sock"
	runtimeDir = "/run/hinit"
)

// SocketPaths returns the paths at which an init with the uid tries to create its control socket, in the order of its attempts.
// socket is the configured path, or "". The first path is socket, or without it the path in HINIT_RUNTIME_DIR. After it come
// /run/hinit, hinit in XDG_RUNTIME_DIR (not for root), and hinit-UID in TMPDIR and in /tmp.
func SocketPaths(socket string, env func(string) (string, bool), uid int) []string {
	value := func(name string) string {
		text, _ := env(name)
		return text
	}
	if socket == "" {
		dir := value("HINIT_RUNTIME_DIR")
		if !filepath.IsAbs(dir) {
			dir = runtimeDir
		}
		socket = filepath.Join(dir, socketName)
	}
	list := []string{socket}
	add := func(parent, name string) {
		path := filepath.Join(parent, name, socketName)
		if filepath.IsAbs(parent) && !slices.Contains(list, path) {
			list = append(list, path)
		}
	}
	add(filepath.Dir(runtimeDir), filepath.Base(runtimeDir))
	if uid != 0 {
		add(value("XDG_RUNTIME_DIR"), "hinit")
	}
	add(value("TMPDIR"), "hinit-"+strconv.Itoa(uid))
	add("/tmp", "hinit-"+strconv.Itoa(uid))
	return list
}

// AbstractSocket returns the name of this container's abstract socket, or "" if /proc doesn't show the namespaces. The containers
// of a pod share the network namespace, so the name must be unique among them. It contains the numbers of the PID namespace,
// which the containers may also share, and of the mount namespace.
func AbstractSocket() string {
	pid, err := os.Stat("/proc/self/ns/pid")
	mnt, err2 := os.Stat("/proc/self/ns/mnt")
	if err != nil || err2 != nil {
		return ""
	}
	return fmt.Sprintf("@hinit-%d-%d", pid.Sys().(*syscall.Stat_t).Ino, mnt.Sys().(*syscall.Stat_t).Ino)
}
