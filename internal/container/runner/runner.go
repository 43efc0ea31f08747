// Package runner runs commands of hinit.yaml once, for clients of the control API: it makes a run of a request.
//
// It promises that nothing runs but what the configuration names, and that a run's log is opened as the agent's user. It owns no
// goroutine; package runs follows what was started.
package runner

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"hinit/client"
	"hinit/internal/blocking"
	"hinit/internal/config"
	"hinit/internal/container/units"
	"hinit/internal/fsutil"
	"hinit/internal/proc"
	"hinit/internal/runs"
	"hinit/profiles"
)

// logMode is the mode of a log that a run makes.
const logMode = 0o644

// Runner starts runs.
type Runner struct {
	Book   *runs.Book
	Config func() *config.Config
	Units  *units.Maker
	Store  *profiles.Store
	Actor  *fsutil.Actor // opens the logs
	MayRun func() error  // why nothing may be started now, nil when it may
}

// StartRun is control.Core's.
func (r *Runner) StartRun(ctx context.Context, ask client.RunRequest) (client.Run, error) {
	cfg := r.Config()
	template, known := cfg.Runs[ask.Template]
	if !known {
		return client.Run{}, &client.Error{Kind: client.KindUnknown, Message: fmt.Sprintf("no command %q may be run; add it to hinit.yaml, below the key \"runs\"", ask.Template)}
	}
	if why := runs.CheckTag(ask.Tag); why != "" {
		return client.Run{}, &client.Error{Kind: client.KindBadRequest, Message: fmt.Sprintf("tag is %q; %s", ask.Tag, why)}
	}
	if err := r.MayRun(); err != nil {
		return client.Run{}, err
	}
	spec, err := r.spec(cfg, template, ask)
	if err != nil {
		return client.Run{}, err
	}
	output, err := r.log(ask.Log)
	if err != nil {
		return client.Run{}, err
	}
	grace := template.Grace
	if ask.GraceMS > 0 {
		grace = time.Duration(ask.GraceMS) * time.Millisecond
	}
	return r.Book.Start(ctx, runs.Order{
		Tag: ask.Tag, Template: ask.Template, Profile: ask.Profile, Spec: spec, Output: output, Log: ask.Log,
		Limit: time.Duration(ask.LimitMS) * time.Millisecond, Grace: grace,
	})
}

// spec is the process of a run.
func (r *Runner) spec(cfg *config.Config, template config.Run, ask client.RunRequest) (proc.Spec, error) {
	home := ""
	if ask.Profile != "" {
		p, err := r.Store.Profile(ask.Profile)
		if err != nil {
			return proc.Spec{}, &client.Error{Kind: client.KindBadRequest, Message: err.Error()}
		}
		home = p.Home
	}
	return r.Units.Run(cfg, template, ask, home)
}

// log opens the file that takes a run's output as the agent's user, who may put anything in its place.
func (r *Runner) log(path string) (f *os.File, err error) {
	if path == "" {
		return nil, nil
	}
	err = blocking.Do(blocking.Volume, func() error {
		d, err := fsutil.OpenReal(filepath.Dir(path), r.Actor)
		if err != nil {
			return err
		}
		defer d.Close()
		f, err = d.OpenAppend(filepath.Base(path), logMode)
		return err
	})
	return f, err
}
