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

// replaced are the image's scripts that hinit replaces.
var replaced = []string{"01-hermes-setup", "015-supervise-perms", "02-reconcile-profiles"}

// ImageHook returns the agent's own boot script, which docker/remove-s6 keeps, as a hook for root.
func ImageHook() (boot.Hook, error) {
	script := filepath.Join(config.ImageDir, replaced[0])
	if _, err := os.Stat(script); err != nil {
		return boot.Hook{}, fmt.Errorf("cannot run the boot script of the image: %w; build the image with this docker/remove-s6, or leave HINIT_BOOT unset", err)
	}
	return contInit(script), nil
}

func contInit(path string) boot.Hook {
	return boot.Hook{Name: path, Command: []string{path}, User: "root", Timeout: contInitTimeout, ContInit: true}
}

// ContInitHooks returns the scripts in dir, sorted by bytes, as hooks for root. It leaves out the image's replaced scripts,
// directories, files that cannot be executed, and scripts that the agent's user could change; lines say so. A missing directory has
// no scripts. It blocks on dir.
func ContInitHooks(dir string, agent *fsutil.Actor) (hooks []boot.Hook, lines []boot.Line) {
	skip := func(path, format string, args ...any) {
		lines = append(lines, boot.Line{Warning: true, Text: fmt.Sprintf("cont-init: warning: skipping %s: "+format, append([]any{path}, args...)...)})
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			skip(dir, "%v", boot.Bare(err))
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
		case slices.Contains(replaced, e.Name()):
			lines = append(lines, boot.Line{Text: "cont-init: info: skipping " + path + ": hinit does its work"})
		case err != nil:
			skip(path, "%v", boot.Bare(err))
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

// agentDoubt returns how the agent's user could change what a path leads to, links included, nil if it can't. If hinit is not
// root, it is always nil.
func agentDoubt(path string, agent *fsutil.Actor) *trust.Doubt {
	if !agent.Switches() {
		return nil
	}
	id := agent.Identity()
	doubt, _ := trust.Check(path, trust.NotChangeableBy(id.UID, append([]uint32{id.GID}, id.Groups...))) // a file that can't be examined can't be executed either
	return doubt
}
