package main

import (
	"fmt"
	"math"
)

// measure is one table of figures.
type measure struct {
	id      string   // ID in figures, such as M1.
	title   string   // Title of the table.
	unit    string   // Unit of all columns whose names contain none.
	columns []string // First columns; others follow.
	plot    bool     // Whether to plot the figures over the number of services.
}

// measures lists all tables in their order. Figures without a measure are not shown.
var measures = []measure{ //nolint:gochecknoglobals // this variable never changes
	{"M1", "memory of supervisor and loggers by number of services (PSS)", "MB", nil, true},
	{"M1 used", "the same after five times the status of all", "MB", nil, false},
	{"M1 private", "of that, private and dirty", "MB", nil, false},
	{"M1 tables", "page tables besides", "MB", nil, false},
	{"M1 processes", "processes of supervisor and loggers", "", nil, false},
	{"M2", "first boot until all services run, by their number", "ms", nil, true},
	{"M2 again", "second boot, from the directories that the first has left", "ms", nil, false},
	{"M3", "from the crash of a service until it runs again", "ms", []string{"restart", asDelivered}, false},
	{"M4", "context switches at rest, by number of services", "", nil, true},
	{"M4 cpu", "processor time at rest, by number of services", "ms", nil, false},
	{"M5", "log path: 100-byte lines, writer with 64 KiB a write", "", []string{"MB/s", "CPU s/GB", consoleShare}, false},
	{"M5 lines", "log path: 100-byte lines, one line a write", "", []string{"MB/s", "CPU s/GB", consoleShare}, false},
	{"M6", "commands, whole processes; start and stop until the effect", "ms", []string{"status", "status of all", "start", "stop"}, false},
	{"M6 all", "status of all by number of services", "ms", nil, true},
	{
		"M7", "orphans one after another: CPU of process 1 for each, part it leaves behind, time to reap the last", "",
		[]string{"µs", "left %", "drained ms"},
		false,
	},
	{"M8", "exec shim in front of /bin/true, whole and what it adds", "ms", []string{"whole", "added"}, false},
	{"M9", "one more service while 100 run, until it runs", "ms", []string{apiCall, bareMkdir}, false},
	{"M10", "TERM until process 1 is gone, by number of services", "ms", nil, true},
	{"M10 check", "the same with services that note the TERM", "", []string{"told", "ms", "told beside a stubborn one", "ms beyond its budget"}, false},
	{"M11", "one docker run --rm IMAGE true, whole and above the same without an init", "ms", []string{"whole", "added"}, false},
	{"M12", "commands of the agent through the shim, whole processes", "ms", []string{gatewayStatus, gatewayStart}, false},
}

// Names of columns that several measures use.
const (
	apiCall       = "API call"
	bareMkdir     = "mkdir and API call"
	gatewayStatus = "gateway status"
	gatewayStart  = "gateway start"
	asDelivered   = "as delivered"
	consoleShare  = "console got, %"
)

// target is one promise: a limit for a figure of hinit.
type target struct {
	measure, at string
	limit       float64 // Limit of the figure.
	of          string  // Candidate to compare with: the limit is a multiple of its figure in the same rounds. "": limit is absolute.
	least       bool    // Whether the figure must be at least the limit; otherwise it must be at most the limit.
	unit        string
}

// targets lists all promises, in the order of the document.
var targets = []target{ //nolint:gochecknoglobals // this variable never changes
	{measure: "M1", at: "10", limit: 4.5, unit: "MB"},
	{measure: "M1", at: "100", limit: 10, unit: "MB"},
	{measure: "M1", at: "500", limit: 16, unit: "MB"},
	{measure: "M1 used", at: "10", limit: 4.5, unit: "MB"},
	{measure: "M1 private", at: "100", limit: 5, unit: "MB"},
	{measure: "M2", at: "1", limit: 5, unit: "ms"},
	{measure: "M2", at: "100", limit: 100, unit: "ms"},
	{measure: "M2", at: "500", limit: 400, unit: "ms"},
	{measure: "M2", at: "10", limit: 1.3, of: loopName},
	{measure: "M2", at: "100", limit: 1.3, of: loopName},
	{measure: "M2", at: "500", limit: 1.3, of: loopName},
	{measure: "M2 again", at: "1", limit: 5, unit: "ms"},
	{measure: "M2 again", at: "100", limit: 100, unit: "ms"},
	{measure: "M2 again", at: "500", limit: 400, unit: "ms"},
	{measure: "M2 again", at: "10", limit: 1.3, of: loopName},
	{measure: "M2 again", at: "100", limit: 1.3, of: loopName},
	{measure: "M2 again", at: "500", limit: 1.3, of: loopName},
	{measure: "M2", at: "10", limit: 1, of: pebbleName},
	{measure: "M2", at: "100", limit: 1, of: pebbleName},
	{measure: "M2", at: "500", limit: 1, of: pebbleName},
	{measure: "M3", at: "restart", limit: 2, unit: "ms"},
	{measure: "M3", at: asDelivered, limit: 5, unit: "ms"},
	{measure: "M4", at: "500", limit: 20, unit: "switches"},
	{measure: "M4 cpu", at: "500", limit: 1, unit: "ms"},
	{measure: "M5", at: "MB/s", limit: 5, of: logS6, least: true},
	{measure: "M5", at: "CPU s/GB", limit: 0.25, of: logS6},
	{measure: "M5", at: consoleShare, limit: 100, least: true, unit: "%"},
	{measure: "M5 lines", at: consoleShare, limit: 100, least: true, unit: "%"},
	{measure: "M6", at: "status", limit: 2, of: s6Name},
	{measure: "M6", at: "status of all", limit: 6, unit: "ms"},
	{measure: "M6", at: "start", limit: 4, unit: "ms"},
	{measure: "M6", at: "stop", limit: 4, unit: "ms"},
	{measure: "M7", at: "µs", limit: 2.5, of: "tini"},
	{measure: "M7", at: "left %", limit: 0, unit: "%"},
	{measure: "M7", at: "drained ms", limit: 10, unit: "ms"},
	{measure: "M8", at: "added", limit: 0.8, unit: "ms"},
	{measure: "M9", at: apiCall, limit: 6, unit: "ms"},
	{measure: "M9", at: bareMkdir, limit: 6, unit: "ms"},
	{measure: "M10", at: "1", limit: 3, unit: "ms"},
	{measure: "M10", at: "10", limit: 4, unit: "ms"},
	{measure: "M10", at: "100", limit: 15, unit: "ms"},
	{measure: "M10 check", at: "told", limit: 100, least: true, unit: "services"},
	{measure: "M10 check", at: "told beside a stubborn one", limit: 99, least: true, unit: "services"},
	{measure: "M10 check", at: "ms beyond its budget", limit: 0, unit: "ms"},
	{measure: "M11", at: "added", limit: 60, unit: "ms"},
	{measure: "M12", at: gatewayStatus, limit: 6, unit: "ms"},
	{measure: "M12", at: gatewayStart, limit: 6, unit: "ms"},
}

// verdict is the comparison of a figure with its target.
type verdict struct {
	target
	figure float64
	known  bool
	met    bool
}

func (t target) judge(f figures) verdict {
	v := verdict{target: t}
	if t.of == "" {
		v.figure, v.known = f.median(t.measure, t.at, hinitName)
	} else {
		v.figure, v.known = f.ratio(t.measure, t.at, hinitName, t.of)
	}
	v.met = v.known && (t.least && v.figure >= t.limit || !t.least && v.figure <= t.limit)
	return v
}

// promise describes the target in words.
func (t target) promise() string {
	bound := "at most"
	if t.least {
		bound = "at least"
	}
	switch {
	case t.of != "" && t.limit == 1:
		return "not behind " + t.of
	case t.of != "":
		return fmt.Sprintf("%s %g × %s", bound, t.limit, t.of)
	}
	return fmt.Sprintf("%s %g %s", bound, t.limit, t.unit)
}

func (v verdict) shown() string {
	switch {
	case !v.known:
		return "not measured"
	case v.of != "":
		return formatNumber(v.figure) + " ×"
	}
	return formatNumber(v.figure) + " " + v.unit
}

// growthExponent returns the exponent by which a figure grows with the number of services; 1 means
// proportional growth. Figures below smallest count as smallest.
func growthExponent(from, to, ratio, smallest float64) float64 {
	return math.Log(max(to, smallest)/max(from, smallest)) / math.Log(ratio)
}
