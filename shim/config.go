package shim

import (
	"errors"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"hinit/internal/trust"
)

// maxConfig is the maximum size in bytes of a file that the shim reads, enough for the longest names of ten thousand profiles.
const maxConfig = 1 << 20

// readConfig reads the target and the user from /etc/hinit/shim. A missing file is no error. After an error, the options are
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
		o.target, o.hinitPath = target, "" // the gateway commands of another agent may mean something else, so that agent handles them
	}
	if len(lines) > 1 {
		if user := strings.TrimSpace(lines[1]); user != "" {
			o.user, o.home = user, "" // "" means the home of this user
		}
	}
	return nil
}

// readTrusted reads a small regular file. If a user other than root can change the file or its path, it returns an error.
func readTrusted(path string) (string, error) {
	fd, violation, err := trust.Open(path, trust.RootOnly)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	if violation != nil {
		return "", errors.New(violation.String())
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

// lookupEnv returns the variable key of env, or "". Of several values the first one counts, as with getenv(3).
func lookupEnv(env []string, key string) string {
	for _, kv := range env {
		if k, v, ok := strings.Cut(kv, "="); ok && k == key {
			return v
		}
	}
	return ""
}

// withEnv returns a copy of env with the variable key set to value.
func withEnv(env []string, key, value string) []string {
	out := slices.DeleteFunc(slices.Clone(env), func(kv string) bool { return strings.HasPrefix(kv, key+"=") })
	return append(out, key+"="+value)
}
