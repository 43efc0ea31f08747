package registry

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"hinit/client"
	"hinit/internal/blocking"
	"hinit/internal/fsutil"
	"hinit/internal/runs"
)

// runLogMode is the mode of a log file that a run creates.
const runLogMode = 0o644

// StartRun runs a command once, for a client of the control API. It runs only commands that are defined under runs in hinit.yaml.
func (r *Registry) StartRun(ctx context.Context, ask client.RunRequest) (client.Run, error) {
	refuse := func(kind client.Kind, format string, args ...any) (client.Run, error) {
		return client.Run{}, &client.Error{Kind: kind, Message: fmt.Sprintf(format, args...)}
	}
	cfg := r.o.Config()
	template, known := cfg.Runs[ask.Template]
	if !known {
		return refuse(client.KindUnknown, "no command %q may be run; add it to hinit.yaml, below the key \"runs\"", ask.Template)
	}
	if why := runs.CheckTag(ask.Tag); why != "" {
		return refuse(client.KindBadRequest, "tag is %q; %s", ask.Tag, why)
	}
	if err := r.o.MayRun(); err != nil {
		return client.Run{}, err
	}
	home := ""
	if ask.Profile != "" {
		p, err := r.o.Store.Profile(ask.Profile)
		if err != nil {
			return refuse(client.KindBadRequest, "%v", err)
		}
		home = p.Home
	}
	output, err := openRunLog(ask.Log, r.o.Actor)
	if err != nil {
		return client.Run{}, err
	}
	grace := template.Grace
	if ask.GraceMS > 0 {
		grace = time.Duration(ask.GraceMS) * time.Millisecond
	}
	return r.o.Logs.Runs.Start(ctx, runs.Order{
		Tag: ask.Tag, Template: ask.Template, Profile: ask.Profile, Spec: r.o.Units.Run(cfg, template, ask, home), Output: output, Log: ask.Log,
		Limit: time.Duration(ask.LimitMS) * time.Millisecond, Grace: grace,
	})
}

// openRunLog opens the file for a run's output. It uses the identity of the agent's user, because the agent may have put a link
// or anything else in its place. If path is "", it returns nil.
func openRunLog(path string, agent *fsutil.Actor) (*os.File, error) {
	if path == "" {
		return nil, nil
	}
	return blocking.Get(blocking.Volume, func() (*os.File, error) {
		d, err := fsutil.OpenNoLink(filepath.Dir(path), agent)
		if err != nil {
			return nil, err
		}
		defer d.Close()
		return d.OpenAppend(filepath.Base(path), runLogMode)
	})
}
