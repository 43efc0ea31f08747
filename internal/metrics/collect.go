package metrics

import (
	"cmp"
	"context"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/common/expfmt"
	"github.com/samber/lo"

	"hinit/client"
	"hinit/internal/control/show"
	"hinit/internal/forward"
	"hinit/internal/fsutil"
	"hinit/internal/proc"
	"hinit/internal/procstat"
	"hinit/internal/procusage"
)

// MaxServices is the default maximum number of services that have metrics.
const MaxServices = 1000

// maxBootSteps is the maximum number of boot steps that have metrics.
const maxBootSteps = 100

// causeDelay is how long after an exit its cause may still change, because hinit learns some causes late. The metrics count an
// exit after this time.
const causeDelay = 2 * time.Second

// Causes lists the values of the label cause, except "other".
var Causes = []string{"crash", "clean", "config", "oom", "signal", "operator", "shutdown", "spawn", "replaced", "health", "shed", "quota", "lease"}

var knownStates = []string{
	client.StateDown, client.StateWaiting, client.StateStarting, client.StateUp, client.StateStopping, client.StateKilling,
	client.StateFinishing, client.StateBackoff, client.StateParked, client.StateFailed,
}

// Source is the connection to the hinit that the metrics describe. [dial.Client] implements it; tests use another one.
type Source interface {
	Status(ctx context.Context, names ...string) (client.Status, error)
	Events(ctx context.Context, o client.EventOptions, fn func(client.Event) error) error
}

// Collector asks hinit for its status at each collection, and makes metrics from the answer. It implements
// prometheus.Collector. Several goroutines may use it.
type Collector struct {
	Source   Source
	ProcPath func(client.Init) string // returns the path of a /proc with hinit's processes, or ""
	// ForwardCounters returns how far `hinit forward` is, or an error if it never ran.
	ForwardCounters func(client.Init) (forward.Positions, error)
	MaxServices     int                    // maximum number of services with metrics; 0: the constant MaxServices
	Now             func() time.Time       // returns the present time
	Context         func() context.Context // returns the context for requests to hinit
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, f := range Families {
		ch <- f.desc
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(c.Context(), 5*time.Second)
	defer cancel()
	st, err := c.Source.Status(ctx)
	out := metricSink{ch}
	if err != nil || st.Version != client.StatusVersion {
		out.send(hinitUp, 0)
		return
	}
	out.send(hinitUp, 1)
	stops := c.stopDurations(ctx)
	var seen *processList
	if root := c.ProcPath(st.Init); root != "" {
		seen = readProcesses(root, procusage.ServiceRootsOf(st, root))
	}
	out.sendInit(st, seen)
	most := cmp.Or(max(c.MaxServices, 0), MaxServices)
	// Prometheus refuses two series with the same labels. If several services have the same label, only the first has metrics.
	list := lo.UniqBy(st.Services, func(s client.Service) string { return labelValue(s.Name) })
	out.send(services, float64(len(st.Services)))
	out.send(omittedServices, float64(len(st.Services)-min(len(list), most)))
	now := c.Now()
	if p, err := c.ForwardCounters(st.Init); err == nil {
		out.sendForwarded(p, now)
	}
	for i := range list[:min(len(list), most)] {
		s := &list[i]
		out.sendService(s, now)
		if stop, known := stops[s.Name]; known {
			out.send(stopTime, stop.Seconds(), labelValue(s.Name), labelValue(s.Profile))
		}
		if seen != nil {
			out.sendUsage(seen.usageOf(seen.pidsByService[s.Name]...), labelValue(s.Name), labelValue(s.Profile))
		}
	}
}

// metricSink sends metrics to the channel that Prometheus has passed to Collect.
type metricSink struct{ ch chan<- prometheus.Metric }

func (s metricSink) send(f *Family, value float64, labels ...string) {
	m, err := prometheus.NewConstMetric(f.desc, f.kind, value, labels...)
	if err != nil {
		m = prometheus.NewInvalidMetric(f.desc, err)
	}
	s.ch <- m
}

func (s metricSink) sendInit(st client.Status, seen *processList) {
	i := &st.Init
	s.send(hinitInfo, 1, labelValue(i.Version))
	s.send(hinitStart, unixSeconds(i.StartedAt))
	s.send(booting, boolValue(i.Booting))
	s.send(stopping, boolValue(i.Stopping))
	s.send(reexecs, float64(max(i.Generation-1, 0)))
	s.send(orphans, float64(i.OrphansReaped))
	s.send(goroutines, float64(i.Goroutines))
	if i.Lease != nil && i.Lease.State != client.LeaseNone {
		s.send(leaseHeld, boolValue(i.Lease.State == client.LeaseHeld))
	}
	for _, step := range lo.UniqBy(i.Boot[:min(len(i.Boot), maxBootSteps)], func(step client.BootStep) string { return labelValue(step.Name) }) {
		s.send(bootStepTime, step.Seconds, labelValue(step.Name))
		s.send(bootStepFailed, boolValue(step.Error != ""), labelValue(step.Name))
	}
	if seen == nil {
		return
	}
	if own := seen.usageOf(i.PID); own.processes > 0 {
		// The metrics of services contain the processor time of reaped children.
		s.send(ownCPU, float64(seen.processes[i.PID].CPU)/procstat.TicksPerSecond)
		s.send(ownMemory, float64(own.memory))
		s.send(ownThreads, float64(own.threads))
		if own.fds >= 0 {
			s.send(ownFDs, float64(own.fds))
		}
	}
}

func (s metricSink) sendService(v *client.Service, now time.Time) {
	name, profile := labelValue(v.Name), labelValue(v.Profile)
	s.send(serviceUp, boolValue(v.State == client.StateUp), name, profile)
	s.send(serviceReady, boolValue(v.Ready), name, profile)
	for _, kind := range show.VerdictOf(v).Problems {
		s.send(serviceProblem, 1, name, profile, kind)
	}
	checks := make(map[string]float64, len(v.Checks)) // results by label, because two names may become the same label
	for i := range v.Checks {
		check := labelValue(v.Checks[i].Name)
		checks[check] = max(checks[check], boolValue(v.Checks[i].Failed && v.State == client.StateUp))
	}
	for check, fails := range checks {
		s.send(checkFailing, fails, name, profile, check)
	}
	if v.Task {
		s.send(taskDone, boolValue(v.Done), name, profile)
	}
	if v.NextRun != nil {
		s.send(nextRun, unixSeconds(*v.NextRun), name, profile)
	}
	if v.NextStart != nil {
		s.send(nextStart, unixSeconds(*v.NextStart), name, profile)
	}
	s.send(serviceWanted, boolValue(v.Want == client.WantUp), name, profile)
	state := v.State
	if !slices.Contains(knownStates, state) {
		state = "other"
	}
	s.send(serviceState, 1, name, profile, state)
	s.send(stateSince, unixSeconds(v.Since), name, profile)
	s.send(crashLoop, boolValue(v.CrashLoop), name, profile)
	s.send(consecutiveFailures, float64(v.ConsecutiveFailures), name, profile)
	s.send(serviceDrifted, boolValue(v.Drifted), name, profile)
	ended := sumByCause(v.ExitsByCause)
	if x := v.LastExit; x != nil {
		s.send(lastExit, unixSeconds(x.EndedAt), name, profile)
		// After a clean exit, hinit examines during the whole restart delay whether another instance has taken over. So the
		// cause may change until the end of the delay.
		if cause := causeLabel(x.Cause); ended[cause] > 0 && (now.Sub(x.EndedAt) < causeDelay || v.State == client.StateBackoff && x.Cause == "clean") {
			ended[cause]--
		}
	}
	for cause, n := range ended {
		s.send(exits, float64(n), name, profile, cause)
	}
	for cause, n := range sumByCause(v.RestartsByCause) {
		s.send(restarts, float64(n), name, profile, cause)
	}
	if o := v.Output; o != nil {
		s.send(logLines, float64(o.Lines), name, profile)
		s.send(logBytes, float64(o.Bytes), name, profile)
		s.send(logGaps, float64(o.FileLost), name, profile, "file")
		s.send(logGaps, float64(o.ConsoleDropped), name, profile, "console")
		s.send(logGaps, float64(o.Suppressed), name, profile, "rate")
		s.send(logFault, boolValue(o.Error != ""), name, profile)
	}
}

func (s metricSink) sendForwarded(p forward.Positions, now time.Time) {
	s.send(forwardedRecords, float64(p.Counts.Sent), "sent")
	s.send(forwardedRecords, float64(p.Counts.RefusedRecords), "refused")
	s.send(forwardGaps, float64(p.Counts.Gaps))
	s.send(forwardFailures, float64(p.Counts.Failures))
	age := lo.Ternary(!p.OldestUnsent.IsZero(), max(now.Sub(p.OldestUnsent).Seconds(), 0), 0.0)
	s.send(forwardDelay, age)
}

func (s metricSink) sendUsage(u resourceUsage, name, profile string) {
	if u.processes == 0 {
		return // the service has ended
	}
	s.send(cpu, u.cpu, name, profile)
	s.send(memory, float64(u.memory), name, profile)
	s.send(processes, float64(u.processes), name, profile)
	s.send(threads, float64(u.threads), name, profile)
	if u.fds >= 0 {
		s.send(fds, float64(u.fds), name, profile)
	}
}

// stopDurations returns how long the last stop of each service took, from the events of hinit. After an error it returns the
// durations that it has found, because the other metrics are still useful.
func (c *Collector) stopDurations(ctx context.Context) map[string]time.Duration {
	began, took := make(map[string]time.Time), make(map[string]time.Duration)
	note := func(e client.Event) error {
		switch {
		case e.ToState == client.StateStopping:
			began[e.Service] = e.At
		case e.FromState == client.StateStopping || e.FromState == client.StateKilling || e.FromState == client.StateFinishing:
			if e.ToState == client.StateKilling || e.ToState == client.StateFinishing {
				break
			}
			if at, known := began[e.Service]; known && len(took) < MaxServices {
				took[e.Service] = e.At.Sub(at)
				delete(began, e.Service)
			}
		}
		return nil
	}
	_ = c.Source.Events(ctx, client.EventOptions{}, note)
	return took
}

// sumByCause returns the counts in by. It adds the counts of causes that are not in [Causes] together as "other".
func sumByCause(by map[string]int) map[string]int {
	out := make(map[string]int, len(by))
	for cause, n := range by {
		out[causeLabel(cause)] += max(n, 0)
	}
	return out
}

func causeLabel(cause string) string {
	if slices.Contains(Causes, cause) {
		return cause
	}
	return "other"
}

// maxLabelBytes is the maximum size of the value of a label.
const maxLabelBytes = 200

// labelValue makes a valid value of a label from a text of another program: it replaces invalid UTF-8, and cuts the text to
// maxLabelBytes.
func labelValue(text string) string {
	return strings.ToValidUTF8(text[:min(len(text), maxLabelBytes)], "\uFFFD")
}

func boolValue(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

func unixSeconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMilli()) / 1000
}

// maxScrapes is the maximum number of simultaneous requests.
const maxScrapes = 4

// Write writes the metrics once, in the text format that textfile collectors read.
func Write(w io.Writer, c *Collector) error {
	registry := prometheus.NewRegistry()
	if err := registry.Register(c); err != nil {
		return err
	}
	families, err := registry.Gather()
	if err != nil {
		return err
	}
	out := expfmt.NewEncoder(w, expfmt.NewFormat(expfmt.TypeTextPlain))
	for _, f := range families {
		if err := out.Encode(f); err != nil {
			return err
		}
	}
	return nil
}

// Handler returns a handler that serves the metrics: as OpenMetrics to clients that accept it, and otherwise in the older text
// format. It leaves out metrics whose values can't be read.
func Handler(c *Collector) (http.Handler, error) {
	registry := prometheus.NewRegistry()
	if err := registry.Register(c); err != nil {
		return nil, err
	}
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		EnableOpenMetrics: true, MaxRequestsInFlight: maxScrapes, ErrorHandling: promhttp.ContinueOnError,
	}), nil
}

// processList is the state of the container's processes in /proc at one moment.
type processList struct {
	root          string
	processes     procusage.Table
	pidsByService map[string][]int // process ids by service
}

// resourceUsage is the usage of several processes together.
type resourceUsage struct {
	processes, threads int
	cpu                float64 // processor time in seconds; it includes reaped children, so that the sum does not fall when a child ends
	memory             uint64
	fds                int // open descriptors; -1 if they can't be counted for one process, because a partial sum would mislead
}

// readProcesses reads all processes from root, the path of a proc file system. roots finds the service of each process. If the
// processes can't be read, it returns nil.
func readProcesses(root string, roots proc.ServiceRoots) *processList {
	all, err := procusage.ReadProcesses(root)
	if err != nil {
		return nil
	}
	o := &processList{root: root, processes: all, pidsByService: make(map[string][]int, len(roots.Mains))}
	for pid, main := range roots.Owners(all) {
		if name := roots.Mains[main]; main != 0 {
			o.pidsByService[name] = append(o.pidsByService[name], pid)
		}
	}
	return o
}

// usageOf returns the usage of the processes with these pids together.
func (o *processList) usageOf(pids ...int) (u resourceUsage) {
	for _, pid := range pids {
		one, is := o.processes[pid]
		if !is {
			continue
		}
		u.processes++
		u.threads += one.Threads
		u.cpu += float64(one.CPU+one.ReapedCPU) / procstat.TicksPerSecond
		u.memory += one.Memory
		if n := countFDs(o.root, pid); n < 0 || u.fds < 0 {
			u.fds = -1
		} else {
			u.fds += n
		}
	}
	return u
}

// countFDs returns the number of open descriptors of a process. If this user may not count them, it returns -1.
func countFDs(root string, pid int) int {
	dir, err := os.Open(filepath.Join(root, strconv.Itoa(pid), "fd"))
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return 0
		}
		return -1
	}
	defer dir.Close()
	n := 0
	if fsutil.EachEntry(int(dir.Fd()), func(string, fs.FileMode) bool { n++; return true }) != nil {
		return -1
	}
	return n
}
