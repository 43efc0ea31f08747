package shim

import (
	"errors"
	"strings"

	"golang.org/x/sys/unix"
)

// maxConfig is more than a path and a user name need.
const maxConfig = 8 << 10

// configure takes target and user from the configuration file. A missing file is fine; on error nothing is taken.
func (o *options) configure() error {
	text, err := readTrusted(o.config)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	if err != nil {
		return err
	}
	lines := strings.SplitN(text, "\n", 3)
	target := strings.TrimSpace(lines[0])
	if !strings.HasPrefix(target, "/") {
		return errors.New("the first line is not an absolute path")
	}
	if target != o.target {
		o.target, o.native = target, "" // another agent's `gateway start` may mean something else
	}
	if len(lines) > 1 {
		if user := strings.TrimSpace(lines[1]); user != "" {
			o.user, o.home = user, "" // that user's home
		}
	}
	return nil
}

// readTrusted reads a small regular file that only root can have written. The checks are made on the open file, so that
// there is nothing to swap between check and use.
func readTrusted(path string) (string, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ELOOP) {
		return "", errors.New("it is a symbolic link")
	}
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return "", err
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return "", errors.New("it is not a regular file")
	case st.Uid != 0:
		return "", errors.New("it does not belong to root")
	case st.Mode&0o022 != 0:
		return "", errors.New("others than root may write it")
	case st.Size > maxConfig:
		return "", errors.New("it is too large")
	}
	buf := make([]byte, maxConfig)
	n, err := unix.Read(fd, buf)
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}
