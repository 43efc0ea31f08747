package main

import (
	"fmt"
	"slices"
	"strings"

	"hinit/internal/control/show"
	"hinit/internal/metrics"
)

// metricsPage is the reference of the metrics.
func metricsPage() string {
	var b strings.Builder
	b.WriteString(`# Metrics

<!-- Generated from the families in internal/metrics by internal/gendocs. Do not edit. -->

` + "`hinit metrics`" + ` prints them once, and ` + "`/metrics`" + ` of [the page](../how-to/open-the-status-page.md) serves them; see
[scrape with Prometheus](../how-to/scrape-with-prometheus.md). They have at most ` + fmt.Sprint(metrics.MostServices) + ` services unless ` + "`--max-services`" + ` says otherwise. Counters of a service
start again with the container; its processor time starts again with the service.

- Kinds of problems are ` + "`" + strings.Join(show.ProblemKinds(), "`, `") + "`" + `. Each of them but ` + "`not-ready`" + ` also counts as trouble in ` + "`status`, `top`" + `,
  the page and ` + "`healthcheck`" + `.
- States and causes are [these](states.md), and the cause ` + "`other`" + `.
- A name that ends in ` + "`_total`" + ` is a counter, any other one a gauge. Each ` + "`hinit_service_…`" + ` has the labels ` + "`service` and `profile`" + `.

Further labels are in braces.

`)
	for _, f := range metrics.Families {
		further := slices.DeleteFunc(slices.Clone(f.Labels), func(l string) bool { return l == "service" || l == "profile" })
		name := f.Name
		if len(further) > 0 {
			name += "{" + strings.Join(further, ",") + "}"
		}
		fmt.Fprintf(&b, "- `%s`: %s\n", name, f.Help)
	}
	return b.String()
}
