package container

import (
	"cmp"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"hinit/internal/account"
	"hinit/internal/blocking"
	"hinit/internal/proc"
	"hinit/internal/trust"
)

// isRoots reports whether what runs with these credentials is root, and the agent is not. Where hinit isn't root, or the agent is,
// everything runs as the agent.
func (c *container) isRoots(cred *proc.Cred) bool {
	return cred == nil && os.Geteuid() == 0 && c.agent.User.UID != 0
}

// rootEnv is the environment of what runs as root: that of the container without what could have root use what the agent has put
// somewhere, and own, which hinit.yaml sets, on top. HOME is root's unless hinit.yaml names another place outside the volume.
func (c *container) rootEnv(own map[string]string) []string {
	env := slices.DeleteFunc(slices.Clone(*c.env.Load()), func(kv string) bool {
		name, value, _ := strings.Cut(kv, "=")
		return name != "PATH" && c.pointsToAgent(value)
	})
	own = maps.Clone(own)
	if own == nil {
		own = make(map[string]string, 2)
	}
	if home := own["HOME"]; home == "" || c.pointsToAgent(home) {
		own["HOME"] = c.rootHome()
	}
	env = proc.SetEnv(env, own)
	return proc.SetEnv(env, map[string]string{"PATH": c.trustedPath(proc.Getenv(env, "PATH"))})
}

// pointsToAgent reports whether a value leads to a directory of the agent's, in whatever way it is put: alone, in a list, or in an option.
func (c *container) pointsToAgent(value string) bool {
	return slices.ContainsFunc(c.agentPlaces(), func(place string) bool { return trust.Leads(value, place) })
}

// agentPlaces are the directories that are the agent's whoever owns them: the data volume and its homes.
func (c *container) agentPlaces() []string {
	places := []string{c.cfg.Load().Home}
	for _, home := range []string{*c.home.Load(), c.agent.User.Home} {
		if filepath.IsAbs(home) && filepath.Clean(home) != "/" {
			places = append(places, filepath.Clean(home))
		}
	}
	return places
}

// rootHome is the home of root.
func (c *container) rootHome() string {
	var root account.User
	err := blocking.Do(blocking.Foreign, func() (err error) {
		root, err = account.Lookup("", "0")
		return err
	})
	if err != nil || root.Name == "" || !filepath.IsAbs(root.Home) || c.pointsToAgent(root.Home) {
		return "/root"
	}
	return root.Home
}

// rootDir is the working directory of what runs as root: the configured one, or the root directory where the agent could put a file
// into it, which many programs would find there.
func (c *container) rootDir(dir string) string {
	if c.agentCanWrite(dir) {
		return "/"
	}
	return dir
}

// trustedPath takes out of a PATH what the agent could put programs into, for what runs as root: a script of the user that
// calls "apt-get" must not get the agent's.
func (c *container) trustedPath(path string) string {
	const system = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" // an empty PATH would be the working directory
	return cmp.Or(strings.Join(slices.DeleteFunc(filepath.SplitList(path), c.agentCanWrite), ":"), system)
}

// agentCanWrite reports whether the agent could put something into a directory, or another in its place. It blocks on the directory,
// but not for one on the volume, which is the agent's by definition.
func (c *container) agentCanWrite(dir string) bool {
	if !filepath.IsAbs(dir) {
		return true
	}
	dir = filepath.Clean(dir)
	if slices.ContainsFunc(c.agentPlaces(), func(place string) bool { return dir == place || strings.HasPrefix(dir, place+"/") }) {
		return true
	}
	var doubt *trust.Doubt
	err := blocking.Do(blocking.Foreign, func() error {
		doubt, _ = trust.Look(dir, trust.NotBy(c.agent.User.UID, append([]uint32{c.agent.User.GID}, c.agent.User.Groups...)))
		return nil // there is nothing in what doesn't exist
	})
	return err != nil || doubt != nil
}
