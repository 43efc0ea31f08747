package shim

import (
	"errors"
	"strings"

	"golang.org/x/sys/unix"

	"hinit/internal/trust"
)

// maxConfig limits the size of a file that the shim reads. It is enough for the names of a thousand profiles.
const maxConfig = 64 << 10

// readConfig reads target and user from the configuration file. A missing file is no error. After an error, the options are
// unchanged.
func (o *options) readConfig() error {
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
		o.target, o.native = target, "" // another agent's gateway commands may mean something else, so leave them to the agent
	}
	if len(lines) > 1 {
		if user := strings.TrimSpace(lines[1]); user != "" {
			o.user, o.home = user, "" // "" selects the home of this user
		}
	}
	return nil
}

// readTrusted reads a small regular file. It refuses a file or a path that a user other than root can change.
func readTrusted(path string) (string, error) {
	fd, doubt, err := trust.Open(path, trust.RootOnly)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	if doubt != nil {
		return "", errors.New(doubt.String())
	}
	buf := make([]byte, maxConfig+1)
	n, err := unix.Read(fd, buf)
	if err != nil {
		return "", err
	}
	if n > maxConfig {
		return "", errors.New("it is too large")
	}
	return string(buf[:n]), nil
}
