package boot

import (
	"context"
	"errors"
	"io/fs"

	"hinit/internal/blocking"
	"hinit/internal/fsutil"
)

// Adopt makes the agent's user the owner of the files that a gateway needs to start in the home of one named profile. [Prepare] does the same for every
// profile at boot; [Repair] gives away the rest. It does nothing if it can't change owners, or if the profile is missing, a link or
// a mount. It blocks as long as the disk does; say gets the warnings.
func Adopt(ctx context.Context, o Options, profile string) error {
	o = o.withDefaults()
	if !o.Agent.Switches() || profile == "" {
		return nil
	}
	return blocking.Do(blocking.Volume, func() error { return adopt(ctx, o, profile) })
}

func adopt(ctx context.Context, o Options, profile string) error {
	root, err := fsutil.OpenReal(o.Home, nil)
	if err != nil {
		return err
	}
	defer root.Close()
	p := &preparer{Options: o, root: root}
	give := &owning{preparer: p, step: &step{say: o.Say, env: map[string]string{}}, to: p.owner()}
	if all, err := root.Sub(profilesName); err == nil { // which may be a mount
		give.tenants(all)
		all.Close()
	}
	home, err := root.SubSame(profilesName + "/" + profile)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fsutil.ErrSymlink) || errors.Is(err, fsutil.ErrMount) {
		return nil
	}
	if err != nil {
		return err
	}
	defer home.Close()
	give.profile(home, give.ownerOfHome(home))
	return ctx.Err()
}
