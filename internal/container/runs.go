package container

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"hinit/client"
	"hinit/internal/blocking"
	"hinit/internal/config"
	"hinit/internal/fsutil"
	"hinit/internal/proc"
	"hinit/internal/runs"
	"hinit/supervisor"
)

// logMode is the mode of a log that a run makes.
const logMode = 0o644

// StartRun implements control.Runner.
func (a api) StartRun(ctx context.Context, r client.RunRequest) (client.Run, error) {
	c := a.c
	cfg := c.cfg.Load()
	template, known := cfg.Runs[r.Template]
	if !known {
		return client.Run{}, &client.Error{Kind: client.KindUnknown, Message: fmt.Sprintf("no command %q may be run; add it to hinit.yaml, below the key \"runs\"", r.Template)}
	}
	if why := runs.CheckTag(r.Tag); why != "" {
		return client.Run{}, &client.Error{Kind: client.KindBadRequest, Message: fmt.Sprintf("tag is %q; %s", r.Tag, why)}
	}
	if err := c.lease.Check(); err != nil {
		return client.Run{}, err
	}
	spec, err := c.runSpec(cfg, template, r)
	if err != nil {
		return client.Run{}, err
	}
	output, err := c.runLog(r.Log)
	if err != nil {
		return client.Run{}, err
	}
	grace := template.Grace
	if r.GraceMS > 0 {
		grace = time.Duration(r.GraceMS) * time.Millisecond
	}
	return c.logs.Runs.Start(ctx, runs.Order{
		Tag: r.Tag, Template: r.Template, Profile: r.Profile, Spec: spec, Output: output, Log: r.Log,
		Limit: time.Duration(r.LimitMS) * time.Millisecond, Grace: grace,
	})
}

// runSpec is the process of a run.
func (c *container) runSpec(cfg *config.Config, template config.Run, r client.RunRequest) (proc.Spec, error) {
	home := ""
	if r.Profile != "" {
		p, err := c.store.Profile(r.Profile)
		if err != nil {
			return proc.Spec{}, &client.Error{Kind: client.KindBadRequest, Message: err.Error()}
		}
		home = p.Home
	}
	return c.units.Run(cfg, template, r, home)
}

// runLog opens the file that takes a run's output as the agent's user, who may put anything in its place.
func (c *container) runLog(path string) (f *os.File, err error) {
	if path == "" {
		return nil, nil
	}
	err = blocking.Do(blocking.Volume, func() error {
		d, err := fsutil.OpenReal(filepath.Dir(path), c.agent.Actor)
		if err != nil {
			return err
		}
		defer d.Close()
		f, err = d.OpenAppend(filepath.Base(path), logMode)
		return err
	})
	return f, err
}

// StopRun implements control.Runner.
func (a api) StopRun(ctx context.Context, id string) (client.Run, error) {
	return a.c.logs.Runs.Stop(ctx, id)
}

// FindRun implements control.Runner.
func (a api) FindRun(id string) (client.Run, error) { return a.c.logs.Runs.Find(id) }

// RunsSince implements control.Runner.
func (a api) RunsSince(cursor uint64) ([]client.Run, uint64) { return a.c.logs.Runs.Since(cursor) }

// RunNews implements control.Runner.
func (a api) RunNews() <-chan struct{} { return a.c.logs.Runs.News() }

// Notice implements control.Herald.
func (a api) Notice(ctx context.Context, pid int, key, data string) error {
	n := supervisor.Remark{Text: "notice " + key, Key: key, Data: data}
	if data != "" {
		n.Text += ": " + data
	}
	for _, v := range a.c.loop.Snapshot().Services {
		if proc.InSession(pid, v.PID) {
			n.Service = v.Name
			break
		}
	}
	return a.c.loop.Do(ctx, n)
}

// Say implements control.Talker.
func (a api) Say(ctx context.Context, service string, pid int, text string) error {
	v := a.c.loop.Snapshot().Find(service)
	if v == nil || v.PID == 0 || v.PID != pid {
		return &client.Error{Kind: client.KindNotAllowed, Message: fmt.Sprintf("process %d is not the main process of %q", pid, service)}
	}
	return a.c.loop.Do(ctx, supervisor.Ready{Name: v.Name, Run: v.Run, Ready: v.Ready, Said: text})
}
