package main

import (
	"fmt"
	"strings"

	"hinit/internal/control/show"
	"hinit/internal/metrics"
)

// metricsPage is the reference of the metrics.
func metricsPage() string {
	var b strings.Builder
	b.WriteString(`# Metrics

<!-- Generated from the families in internal/metrics by internal/gendocs. Do not edit. -->

` + "`hinit metrics`" + ` prints them once, ` + "`/metrics`" + ` of [the page](../how-to/open-the-status-page.md) serves them; see
[scrape with Prometheus](../how-to/scrape-with-prometheus.md). There are at most ` + fmt.Sprint(metrics.MostServices) + ` services in them unless ` + "`--max-services`" + `
says otherwise. Kinds of problems are ` + "`" + strings.Join(show.ProblemKinds(), "`, `") + "`" + `. With one of them but ` + "`not-ready`" + `
a service is in trouble for ` + "`status`, `top`" + `, the page and ` + "`healthcheck`" + ` too. Values from /proc are missing where hinit's processes cannot be seen. A counter of a service begins again with the container, the
counter of processor time with the service.

Causes are ` + "`" + strings.Join(metrics.Causes, "`, `") + "`" + ` and ` + "`other`" + `. [The state machine](states.md) lists the states.

| Metric | Type | Labels | Value |
|---|---|---|---|
`)
	for _, f := range metrics.Families {
		kind := "gauge"
		if f.Counts() {
			kind = "counter"
		}
		labels := ""
		if len(f.Labels) > 0 {
			labels = "`" + strings.Join(f.Labels, "`, `") + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", f.Name, kind, labels, f.Help)
	}
	return b.String()
}
