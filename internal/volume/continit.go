package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"hinit/internal/boot"

	"hinit/internal/config"
	"hinit/internal/fsutil"
	"hinit/internal/trust"
)

// replacedScripts are the names of the image's boot scripts whose work hinit does itself.
var replacedScripts = []string{"01-hermes-setup", "015-supervise-perms", "02-reconcile-profiles"}

// ImageHook returns the agent's own boot script as a hook that runs as root. docker/remove-s6 keeps this script in the image.
func ImageHook() (boot.Hook, error) {
	script := filepath.Join(config.ImageDir, replacedScripts[0])
	if _, err := os.Stat(script); err != nil {
		return boot.Hook{}, fmt.Errorf("cannot run the boot script of the image: %w; build the image with this docker/remove-s6, or leave HINIT_BOOT unset", err)
	}
	return contInit(script), nil
}

func contInit(path string) boot.Hook {
	return boot.Hook{Name: path, Command: []string{path}, User: "root", Timeout: contInitTimeout, ContInit: true}
}

// ContInitHooks returns the scripts in dir as hooks that run as root, in byte order of their names. It leaves out the scripts
// that hinit replaces, directories, and files that can't be executed. It also leaves out scripts that the agent's user could
// change. lines are messages about skipped scripts. A missing directory has no scripts. ContInitHooks blocks on dir.
func ContInitHooks(dir string, agent *fsutil.Actor) (hooks []boot.Hook, lines []boot.Line) {
	skip := func(path, format string, args ...any) {
		lines = append(lines, boot.Line{Warning: true, Text: fmt.Sprintf("cont-init: warning: skipping %s: "+format, append([]any{path}, args...)...)})
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			skip(dir, "%v", boot.WithoutPath(err))
		}
		return nil, lines
	}
	if doubt := agentDoubt(dir, agent); doubt != nil && len(entries) > 0 {
		skip(dir, "the agent's user can write it, and root would run what is in it; give it to root or mount it read-only (%s)", doubt)
		return nil, lines
	}
	for _, e := range entries { // os.ReadDir sorts by bytes
		path := filepath.Join(dir, e.Name())
		info, err := os.Stat(path)
		doubt := agentDoubt(path, agent)
		switch {
		case slices.Contains(replacedScripts, e.Name()):
			lines = append(lines, boot.Line{Text: "cont-init: info: skipping " + path + ": hinit does its work"})
		case err != nil:
			skip(path, "%v", boot.WithoutPath(err))
		case info.IsDir():
		case doubt != nil && e.Type()&fs.ModeSymlink != 0:
			skip(path, "it is a link, and the agent's user can change what root would run: %s", doubt)
		case !info.Mode().IsRegular(), info.Mode().Perm()&0o111 == 0:
			skip(path, "it cannot be executed; chmod +x it")
		case doubt != nil:
			skip(path, "the agent's user can write it, and root would run it; give it to root or mount it read-only")
		default:
			hooks = append(hooks, contInit(path))
		}
	}
	return hooks, lines
}

// agentDoubt returns how the agent's user could change the file to which path leads, also through links. It returns nil if
// that user can't change the file, or if hinit is not root.
func agentDoubt(path string, agent *fsutil.Actor) *trust.Doubt {
	if !agent.Switches() {
		return nil
	}
	id := agent.Identity()
	// Ignore the error: a file that can't be examined can't be executed either.
	doubt, _ := trust.Check(path, trust.NotChangeableBy(id.UID, append([]uint32{id.GID}, id.Groups...)))
	return doubt
}
