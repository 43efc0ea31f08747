package units

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"hinit/internal/account"
	"hinit/internal/blocking"
	"hinit/internal/config"
	"hinit/internal/proc"
	"hinit/internal/trust"
	"hinit/supervisor"
)

// runsAsRoot reports whether a program with these credentials runs as root although the agent does not.
func (m *Maker) runsAsRoot(cred *proc.Cred) bool {
	return cred == nil && os.Geteuid() == 0 && m.agent.User.UID != 0
}

// rootEnv returns the environment of a program that runs as root. It is the container's environment without variables that lead
// to a directory of the agent, and with the variables of hinit.yaml in own. The variable HINIT_CONFIG stays, because a program
// of hinit without it would assume that no profile is isolated. HOME is root's home, unless own sets HOME to a directory
// outside the data volume.
func (m *Maker) rootEnv(own map[string]string) []string {
	env := slices.DeleteFunc(slices.Clone(m.Env()), func(kv string) bool {
		name, value, _ := strings.Cut(kv, "=")
		return name != "PATH" && name != "HINIT_CONFIG" && m.pointsToAgent(value)
	})
	own = mergeVars(map[string]string{}, own)
	if home := own["HOME"]; home == "" || m.pointsToAgent(home) {
		own["HOME"] = m.rootHome()
	}
	env = proc.SetEnv(env, own)
	// Drop the directories of the PATH that the agent can write. Otherwise the agent could put an "apt-get" there, and a script of
	// root would run it.
	const system = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" // an empty PATH would mean the working directory
	path := slices.DeleteFunc(filepath.SplitList(proc.Getenv(env, "PATH")), m.agentCanWrite)
	return proc.SetEnv(env, map[string]string{"PATH": cmp.Or(strings.Join(path, ":"), system)})
}

// pointsToAgent reports whether a value contains the path of an agent's directory: as the whole value, in a list or in an
// option.
func (m *Maker) pointsToAgent(value string) bool {
	return slices.ContainsFunc(m.agentDirs(), func(place string) bool { return trust.ContainsPath(value, place) })
}

// agentDirs returns the directories that the agent may write, whoever owns them now: the data volume and the agent's homes.
func (m *Maker) agentDirs() []string {
	places := []string{m.dataHome}
	for _, home := range []string{m.Home(), m.agent.User.Home} {
		if filepath.IsAbs(home) && filepath.Clean(home) != "/" {
			places = append(places, filepath.Clean(home))
		}
	}
	return places
}

// rootHome returns the home directory of root in /etc/passwd, or /root if that is missing or the agent's.
func (m *Maker) rootHome() string {
	root, err := blocking.Get(blocking.Foreign, func() (account.User, error) { return account.Lookup("", "0") })
	if err != nil || root.Name == "" || !filepath.IsAbs(root.Home) || m.pointsToAgent(root.Home) {
		return "/root"
	}
	return root.Home
}

// WarnOfProgram returns a warning if a unit runs as root and the agent can change its program; otherwise "". The parameter name is
// the unit's name in the warning. WarnOfProgram may block on a disk.
func (m *Maker) WarnOfProgram(name string, u supervisor.Unit) string {
	if !m.runsAsRoot(u.Spec.Cred) {
		return ""
	}
	for _, argv := range [][]string{u.Spec.Argv, u.Policy.StopCommand} {
		if len(argv) > 0 && filepath.IsAbs(argv[0]) && m.agentCanWrite(argv[0]) {
			return fmt.Sprintf("%s runs as root, and the agent's user can change its program %s; keep the program where only root can write", name, argv[0])
		}
	}
	return ""
}

// agentCanWrite reports whether the agent can change or replace a file or directory. Outside of the agent's directories it
// reads the disk, which may block.
func (m *Maker) agentCanWrite(dir string) bool {
	if !filepath.IsAbs(dir) {
		return true
	}
	dir = filepath.Clean(dir)
	if slices.ContainsFunc(m.agentDirs(), func(place string) bool { return dir == place || strings.HasPrefix(dir, place+"/") }) {
		return true
	}
	user := m.agent.User
	violation, _ := blocking.Get(blocking.Foreign, func() (*trust.Violation, error) { // an error means that the file is missing, so the agent can't own it
		return trust.Check(dir, trust.NotChangeableBy(user.UID, append([]uint32{user.GID}, user.Groups...)))
	})
	return violation != nil
}

// venv is the Python virtual environment that contains the agent's program.
type venv struct {
	binary string // path of the agent's program
	root   string
	prompt string
}

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

// venvVars returns the variables of the activated virtual environment, for a process that starts in dir. It returns nil if the
// agent's program is not in a virtual environment.
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

// venvEnv returns the container's environment as if the virtual environment were activated in dir. Without a virtual
// environment, it is unchanged.
func (m *Maker) venvEnv(cfg *config.Config, dir string) []string {
	vars := m.venvVars(cfg, dir)
	if vars == nil {
		return m.Env()
	}
	env := slices.DeleteFunc(slices.Clone(m.Env()), func(kv string) bool { return strings.HasPrefix(kv, "PYTHONHOME=") })
	return proc.SetEnv(env, vars)
}
