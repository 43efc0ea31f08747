package main

import (
	"cmp"
	"context"
	"log/slog"
	"path/filepath"
	"strings"

	"hinit/client"
	"hinit/internal/cmdline"
	"hinit/internal/config"
	"hinit/internal/forward"
)

var forwardVerb = verb{cmdline.Verb{
	Program: "hinit", Name: "forward", Args: "--to URL [--state FILE]", Summary: "send logs and events to where they are collected",
	Help: `URL is one of otlp+http://HOST:4318, loki+http://HOST:3100, syslog+udp://HOST:514 (or tcp, tls), syslog+unix:///dev/log and
file:///PATH (JSON lines; 6 files of 100 MB); https takes the place of http. Lines come at least once, across rotations, restarts and a receiver
that is down; the rotated files are the buffer. Secrets of known shapes are hidden. HINIT_FORWARD=1 makes a service of it.
The header Authorization of HTTP requests is what HINIT_FORWARD_AUTHORIZATION says.`,
}, runForward}

func runForward(ctx context.Context, c *cmdline.Call) int {
	const doing = "send the logs"
	to := c.Flags.String("to", c.EnvOr("HINIT_FORWARD_TO", ""), "where to, `URL` (HINIT_FORWARD_TO)")
	state := c.Flags.String("state", stateFile(c.Env, "."), "`FILE` of what has been sent (HINIT_FORWARD_STATE; .hinit-forward.json in the data directory)")
	mask := c.Flags.Bool("mask", true, "hide secrets of known shapes; --mask=false sends lines as they are")
	var except cmdline.ListFlag
	c.Flags.Var(&except, "except", "services whose logs are not sent, `NAME`; "+config.ForwardName+" never is")
	if _, code, ok := c.Parse(0, 0); !ok {
		return code
	}
	if *to == "" {
		return c.Fail(cmdline.ExitUsage, "cannot %s: no receiver is named; set HINIT_FORWARD_TO, or see: hinit forward --help", doing)
	}
	sink, err := forward.NewSink(*to, c.EnvOr("HINIT_FORWARD_AUTHORIZATION", ""))
	if err != nil {
		return c.Fail(cmdline.ExitUsage, "%v", err)
	}
	path, err := filepath.Abs(*state)
	if err != nil {
		return c.ReportError(doing, err)
	}
	h := newSource(c.Env)
	f := &forward.Forwarder{
		Hinit: h, LogReader: h.logReader, Sink: sink, PositionsFile: path, ExcludedServices: append(except, config.ForwardName), MaskSecrets: *mask,
		Log: slog.New(slog.NewTextHandler(c.Err, nil)),
	}
	f.Log.Info("sending", "to", strings.SplitN(*to, "?", 2)[0], "state", path)
	err = f.Run(ctx)
	f.Log.Info("ended", "sent", f.Counts().Sent, "refused", f.Counts().RefusedRecords, "gaps", f.Counts().Gaps, "failures", f.Counts().Failures)
	return c.ReportError(doing, err)
}

// stateFile returns the path of the state file of hinit forward, which contains the positions in the logs.
func stateFile(env func(string) (string, bool), home string) string {
	file, _ := env("HINIT_FORWARD_STATE")
	set, _ := env("HERMES_HOME")
	return cmp.Or(file, filepath.Join(cmp.Or(set, home), ".hinit-forward.json"))
}

// forwardCounters returns how far the log forwarder is, from its state file.
func (h *hinitSource) forwardCounters(i client.Init) (p forward.Positions, err error) {
	as, err := h.logReader(i)
	if err != nil {
		return p, err
	}
	return forward.ReadPositions(stateFile(h.env, i.Home), as)
}
