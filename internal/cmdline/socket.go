package cmdline

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v3"

	"hinit/client/dial"
	"hinit/internal/account"
	"hinit/internal/config"
)

// Env looks up an environment variable, as [os.LookupEnv] does.
type Env = func(name string) (string, bool)

// Here returns a client of the init of this container. It does not connect, see [dial.Here].
func Here(env Env) *dial.Client { return dial.Here(configuredSocket(env), env) }

// Dial connects to the init of this container, see [dial.Find]. It works even if the configuration has mistakes.
func Dial(env Env) (*dial.Client, error) { return dial.Find(configuredSocket(env), env) }

// configuredSocket returns the path of the control socket from the configuration file. The result is "" if the file does not
// set the path or HINIT_RUNTIME_DIR wins over the file. configuredSocket reads no other key: most commands need only this
// key and live for two milliseconds.
func configuredSocket(env Env) string {
	if dir, _ := env("HINIT_RUNTIME_DIR"); filepath.IsAbs(dir) {
		return ""
	}
	text := config.TrustedText(env)
	if !bytes.Contains(text, []byte("socket")) && !bytes.Contains(text, []byte(`\`)) { // with a backslash, the key may have escapes
		return ""
	}
	var file struct {
		Control struct {
			Socket string `yaml:"socket"`
		} `yaml:"control"`
	}
	if yaml.Unmarshal(text, &file) != nil || !filepath.IsAbs(file.Control.Socket) {
		return ""
	}
	return file.Control.Socket
}

// ReadIsolated returns the list of isolated profiles that the hinit with this control socket has written, see
// [account.IsolatedFile]. It is "" if no profile is isolated. An abstract socket has no directory, so the list is unknown, which
// is an error. ReadIsolated may block on the disk.
func ReadIsolated(socket string) (string, error) {
	if !strings.HasPrefix(socket, "/") {
		return "", fmt.Errorf("cannot list the isolated profiles: the control socket %q has no directory; mount a tmpfs on /run", socket)
	}
	text, err := os.ReadFile(filepath.Join(filepath.Dir(socket), account.IsolatedFile))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return string(text), err
}
