package sandbox_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"hinit/internal/testkit"
)

// receiverVar makes this program the attacker in a sandbox. It holds a socket on which the attacker
// receives a directory.
const receiverVar = "HINIT_TEST_TAKES"

// receiveDirectory receives a directory over the socket, and prints what it can do with it.
func receiveDirectory(socket string) error {
	c, err := net.Dial("unix", socket)
	if err != nil {
		return err
	}
	defer c.Close()
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := c.(*net.UnixConn).ReadMsgUnix(make([]byte, 1), oob)
	if err != nil {
		return err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(messages) != 1 {
		return fmt.Errorf("%d messages: %w", len(messages), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return fmt.Errorf("%d descriptors: %w", len(fds), err)
	}
	fmt.Println("taken")
	if fd, err := unix.Openat(fds[0], "hidden/secret", unix.O_RDONLY, 0); err == nil {
		data := make([]byte, 100)
		n, _ := unix.Read(fd, data)
		fmt.Printf("read: %s\n", data[:n])
	}
	if _, err := unix.Openat(fds[0], "made", unix.O_CREAT|unix.O_WRONLY, 0o644); err == nil {
		fmt.Println("made a file")
	}
	if err := os.WriteFile(fmt.Sprintf("/proc/self/fd/%d/through", fds[0]), nil, 0o644); err == nil {
		fmt.Println("made a file through /proc")
	}
	if err := errors.Join(unix.Fchdir(fds[0]), unix.Chroot(".")); err == nil {
		fmt.Println("changed its root")
	}
	return nil
}

// TestDescriptorOverASocket checks that root inside can't use a descriptor that the agent passes
// over a socket in a mount.
func TestDescriptorOverASocket(t *testing.T) {
	for name, env := range map[string][]string{"caller": nil, "private": {"HINIT_SANDBOX_ROOT=private"}} {
		t.Run(name, func(t *testing.T) {
			testkit.Parallel(t)
			p, _ := newService(t, env...)
			hidden := filepath.Join(p.dir, "hidden")
			if err := errors.Join(os.Mkdir(hidden, 0o700), os.WriteFile(filepath.Join(hidden, "secret"), []byte(secret), 0o600)); err != nil {
				t.Fatal(err)
			}
			program, err := os.ReadFile("/proc/self/exe")
			if err != nil {
				t.Fatal(err)
			}
			targets := map[string]string{filepath.Join(p.home(), "work"): "/workspace", filepath.Join(p.home(), "read"): "/skills"}
			for dir := range targets {
				if err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(filepath.Join(dir, "attack"), program, 0o755), os.Chown(dir, agentUID, agentUID)); err != nil {
					t.Fatal(err)
				}
				l, err := net.Listen("unix", filepath.Join(dir, "sock"))
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close()
				if err := os.Chmod(filepath.Join(dir, "sock"), 0o777); err != nil {
					t.Fatal(err)
				}
				go sendDirectory(l, p.dir)
			}
			box := "hermes-" + p.profile
			flags := append([]string{"run", "-d", "--name", box, "-u", "0:0", "--cap-add", "DAC_OVERRIDE", "--network=none"}, p.labels("default")...)
			for dir, target := range targets {
				mount := dir + ":" + target
				if target == "/skills" {
					mount += ":ro"
				}
				flags = append(flags, "-v", mount)
			}
			if r := p.call(append(flags, image(), "sleep", "infinity")...); r.code != 0 {
				t.Fatal(r)
			}
			for _, target := range targets {
				r := p.call("exec", "-e", receiverVar+"="+target+"/sock", box, "/skills/attack")
				if taken := strings.HasPrefix(r.out, "taken\n"); taken == (name == "private") {
					t.Errorf("the descriptor in %s: %v", target, r)
				}
				if strings.Trim(r.out, "taken\n") != "" {
					t.Errorf("with the descriptor in %s it %v", target, r)
				}
			}
			for _, made := range []string{"made", "through"} {
				if _, err := os.Lstat(filepath.Join(p.dir, made)); err == nil {
					t.Errorf("there is a file %s outside", made)
				}
			}
		})
	}
}

// sendDirectory sends a directory descriptor to each client.
func sendDirectory(l net.Listener, dir string) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		if fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err == nil {
			_, _, _ = c.(*net.UnixConn).WriteMsgUnix([]byte("x"), unix.UnixRights(fd), nil) // Ignore the error: the receiver prints what it received.
			_ = unix.Close(fd)
		}
		_ = c.Close()
	}
}
