package cmdline

import (
	"os"
	"path/filepath"
	"testing"

	"hinit/client"
	"hinit/internal/config"
)

func TestACommandFindsTheSocketThatTheConfigurationNames(t *testing.T) {
	const usual = "/run/hinit/control.sock"
	for name, tt := range map[string]struct {
		text string
		vars map[string]string
		want string
	}{
		"nothing is said":          {text: "home: /data\n", want: usual},
		"in the file":              {text: "home: /data\ncontrol:\n  socket: /a/b\n", want: "/a/b"},
		"on one line":              {text: "control: {others: none, socket: '/a/b'}", want: "/a/b"},
		"by an anchor":             {text: "home: &h /a/b\ncontrol: {socket: *h}", want: "/a/b"},
		"a key with an escape":     {text: `control: {"\x73ocket": /a/b}`, want: "/a/b"},
		"a mistake in another key": {text: "home: [1]\nrestrat: {}\ncontrol: {socket: /a/b}", want: "/a/b"},
		"not absolute":             {text: "control: {socket: a/b}", want: usual},
		"not YAML":                 {text: "control: {socket: /a/b", want: usual},
		"no text":                  {text: "control: {socket: [/a/b]}", want: usual},
		"the environment wins":     {text: "control: {socket: /a/b}", vars: map[string]string{"HINIT_RUNTIME_DIR": "/env"}, want: "/env/control.sock"},
		"the environment alone":    {vars: map[string]string{"HINIT_RUNTIME_DIR": "/env"}, want: "/env/control.sock"},
		"an environment of no use": {text: "control: {socket: /a/b}", vars: map[string]string{"HINIT_RUNTIME_DIR": "env"}, want: "/a/b"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "hinit.yaml")
			if err := os.WriteFile(path, []byte(tt.text), 0o644); err != nil {
				t.Fatal(err)
			}
			env := func(name string) (string, bool) {
				if name == "HINIT_CONFIG" {
					return path, true
				}
				return tt.vars[name], tt.vars[name] != ""
			}
			got := configuredSocket(env)
			if got == "" {
				got = client.SocketPaths("", env, 0)[0]
			}
			if got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
			if cfg, err := config.Load(config.Options{Env: env}); err == nil && cfg.Control.Socket != tt.want {
				t.Errorf("Load says %q, want %q", cfg.Control.Socket, tt.want)
			}
		})
	}
	none := func(name string) (string, bool) { return filepath.Join(t.TempDir(), "none"), name == "HINIT_CONFIG" }
	if got := configuredSocket(none); got != "" {
		t.Errorf("without a file: %q", got)
	}
}
