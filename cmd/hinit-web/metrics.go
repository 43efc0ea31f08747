package main

import (
	"context"

	"hinit/internal/metrics"
)

func metricsVerb() verb {
	return verb{
		name: "metrics", args: "[--max-services N]",
		summary: "print metrics of hinit and its services once, as text for Prometheus",
		help: `For a textfile collector: hinit metrics >x.prom.tmp && mv x.prom.tmp x.prom. hinit web serves the same at /metrics.
When hinit does not answer it prints hinit_up 0 and ends with 4.`,
		run: printMetrics,
	}
}

func printMetrics(ctx context.Context, c *call) int {
	most := c.flags.Int("max-services", metrics.MostServices, "metrics for at most `N` services")
	if code, ok := c.parse(); !ok {
		return code
	}
	h := &hinit{env: c.env}
	if err := metrics.Write(c.out, newCollector(ctx, h, *most)); err != nil {
		return c.failed("print the metrics", err)
	}
	if _, err := h.client(); err != nil {
		return c.failed("ask hinit", err)
	}
	return exitDone
}

func newCollector(ctx context.Context, h *hinit, most int) *metrics.Collector {
	return &metrics.Collector{Source: h, Proc: h.proc, Most: most, Context: func() context.Context { return ctx }}
}
