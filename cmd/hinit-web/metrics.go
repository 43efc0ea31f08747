package main

import (
	"context"

	"hinit/internal/cmdline"
	"hinit/internal/metrics"
)

var metricsVerb = verb{cmdline.Verb{
	Program: "hinit", Name: "metrics", Args: "[--max-services N]",
	Summary: "print metrics of hinit and its services once, as text for Prometheus",
	Help: `For a textfile collector: hinit metrics >x.prom.tmp && mv x.prom.tmp x.prom. hinit web serves the same at /metrics.
When hinit does not answer it prints hinit_up 0 and ends with 4.`,
}, printMetrics}

func printMetrics(ctx context.Context, c *cmdline.Call) int {
	most := c.Flags.Int("max-services", metrics.MostServices, "metrics for at most `N` services")
	if _, code, ok := c.Parse(0, 0); !ok {
		return code
	}
	h := newHinit(c.Env)
	if err := metrics.Write(c.Out, newCollector(ctx, h, *most)); err != nil {
		return c.Failed("print the metrics", err)
	}
	return c.Failed("ask hinit", h.Reach())
}

func newCollector(ctx context.Context, h *hinit, most int) *metrics.Collector {
	return &metrics.Collector{Source: h, Proc: h.proc, Sent: h.forwarded, Most: most, Context: func() context.Context { return ctx }}
}
