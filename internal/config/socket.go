package config

import (
	"bytes"
	"os"

	"go.yaml.in/yaml/v3"
)

// Socket returns the path of the control socket from the environment or the configuration file. It is "" if neither sets it or the
// file can't be read. Socket reads no other key. Most commands need only this key and live for two milliseconds, and a mistake in
// another key must not keep them from hinit. It ignores opt.Text.
func Socket(opt Options) string {
	l := &loader{cfg: new(Config), env: opt.Env}
	if l.env == nil {
		l.env = os.LookupEnv
	}
	if dir, ok := l.lookup("HINIT_RUNTIME_DIR"); ok {
		if socket, wrong := socketInDir(dir); wrong == "" && checkSocket(socket) == "" {
			return socket
		}
	}
	data, err := l.read(opt.Path)
	if err != nil || !bytes.Contains(data, []byte("socket")) && !bytes.Contains(data, []byte(`\`)) { // with a backslash, the key may have escapes
		return ""
	}
	var file struct {
		Control struct {
			Socket string `yaml:"socket"`
		} `yaml:"control"`
	}
	if crowded(data) > 0 || yaml.Unmarshal(data, &file) != nil || checkSocket(file.Control.Socket) != "" || l.doubt != nil {
		return ""
	}
	return file.Control.Socket
}
