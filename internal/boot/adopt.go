package boot

import (
	"context"
	"errors"
	"io/fs"

	"hinit/internal/blocking"
	"hinit/internal/fsutil"
)

// Adopt gives the agent's user the home of one named profile, as far as its gateway needs it to start: what [Prepare] does
// for every profile at boot, for one that appears later, made by root or by another user on the host's side of the volume.
// [Repair] gives it the rest. Without the means to give files away it does nothing; a profile that isn't there, or is a
// link or a mount, is left alone. It blocks as long as the disk does; say gets the warnings.
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
	home, err := root.SubSame(profilesName + "/" + profile)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fsutil.ErrSymlink) || errors.Is(err, fsutil.ErrMount) {
		return nil
	}
	if err != nil {
		return err
	}
	defer home.Close()
	p := &preparer{Options: o, root: root}
	give := &owning{preparer: p, step: &step{say: o.Say, env: map[string]string{}}, to: p.owner()}
	give.profile(home)
	return ctx.Err()
}
