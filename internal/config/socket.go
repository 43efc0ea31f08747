package config

import (
	"bytes"
	"os"

	"go.yaml.in/yaml/v3"
)

// Socket returns where the environment or the configuration file puts the control socket, "" where neither says so or the file
// can't be read. A command needs no other key, so Socket reads no other one. Most commands live for two milliseconds, and a
// mistake in another key must not keep them from reaching hinit. opt.Text is not used.
func Socket(opt Options) string {
	l := &loader{cfg: new(Config), env: opt.Env}
	if l.env == nil {
		l.env = os.LookupEnv
	}
	if dir, ok := l.lookup("HINIT_RUNTIME_DIR"); ok {
		if socket, wrong := socketInDir(dir); wrong == "" && checkSocket(&socket) == "" {
			return socket
		}
	}
	data, err := l.read(opt.Path)
	if err != nil || !bytes.Contains(data, []byte("socket")) && !bytes.Contains(data, []byte(`\`)) { // a key can have escapes in it
		return ""
	}
	var file struct {
		Control struct {
			Socket string `yaml:"socket"`
		} `yaml:"control"`
	}
	if crowded(data) > 0 || yaml.Unmarshal(data, &file) != nil || checkSocket(&file.Control.Socket) != "" || l.doubt != nil {
		return ""
	}
	return file.Control.Socket
}
