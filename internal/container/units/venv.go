package units

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"hinit/internal/blocking"
	"hinit/internal/config"
	"hinit/internal/proc"
)

// venv is the Python virtual environment of the agent's program.
type venv struct {
	binary string // path of the agent's program
	root   string // "" if the program is not in a virtual environment
	prompt string
}

// venvOf finds the virtual environment of a program. It reads a file of the container image.
func venvOf(binary string) *venv {
	v := &venv{binary: binary}
	bin := filepath.Dir(binary)
	if filepath.Base(bin) != "bin" {
		return v
	}
	root := filepath.Dir(bin)
	text, err := blocking.Get(blocking.Foreign, func() ([]byte, error) { return os.ReadFile(filepath.Join(root, "pyvenv.cfg")) })
	if err != nil {
		return v
	}
	v.root, v.prompt = root, filepath.Base(root)
	for line := range strings.Lines(string(text)) {
		if key, value, ok := strings.Cut(line, "="); ok && strings.TrimSpace(key) == "prompt" {
			v.prompt = strings.Trim(strings.TrimSpace(value), `'"`)
		}
	}
	return v
}

// venvVars returns the variables that activating the virtual environment sets, for a process that starts in dir. If the
// agent's program is not in a virtual environment, it returns nil.
func (m *Maker) venvVars(cfg *config.Config, dir string) map[string]string {
	v := m.venv.Load()
	if v == nil || v.binary != cfg.Agent.Binary {
		v = venvOf(cfg.Agent.Binary)
		m.venv.Store(v)
	}
	if v.root == "" {
		return nil
	}
	path := proc.Getenv(m.Env(), "PATH")
	if bin := filepath.Join(v.root, "bin"); path != bin && !strings.HasPrefix(path, bin+":") {
		path = bin + ":" + path
	}
	vars := map[string]string{"VIRTUAL_ENV": v.root, "VIRTUAL_ENV_PROMPT": v.prompt, "PATH": path}
	if dir != "" {
		vars["PWD"] = dir
	}
	return vars
}

// venvEnv returns the container's environment with the variables of venvVars and without PYTHONHOME. If venvVars returns
// nil, the environment is unchanged.
func (m *Maker) venvEnv(cfg *config.Config, dir string) []string {
	vars := m.venvVars(cfg, dir)
	if vars == nil {
		return m.Env()
	}
	env := slices.DeleteFunc(slices.Clone(m.Env()), func(kv string) bool { return strings.HasPrefix(kv, "PYTHONHOME=") })
	return proc.SetEnv(env, vars)
}
