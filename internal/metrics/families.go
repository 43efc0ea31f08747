package metrics

import "github.com/prometheus/client_golang/prometheus"

// Family is a metric: its name, labels and help text.
type Family struct {
	Name   string
	Labels []string
	Help   string
	kind   prometheus.ValueType
	desc   *prometheus.Desc
}

const (
	gauge   = prometheus.GaugeValue
	counter = prometheus.CounterValue
)

var (
	perService = []string{"service", "profile"}
	perCause   = []string{"service", "profile", "cause"}
)

// Families lists all metrics, in the order in which the reference page lists them.
var Families []*Family

func defineMetric(kind prometheus.ValueType, name string, labels []string, help string) *Family {
	f := &Family{Name: name, kind: kind, Labels: labels, Help: help, desc: prometheus.NewDesc(name, help, labels, nil)}
	Families = append(Families, f)
	return f
}

var (
	hinitUp         = defineMetric(gauge, "hinit_up", nil, "1 when hinit answers on its control socket.")
	hinitInfo       = defineMetric(gauge, "hinit_info", []string{"version"}, "Always 1, with the version of hinit.")
	hinitStart      = defineMetric(gauge, "hinit_start_time_seconds", nil, "When hinit started, in seconds since 1970.")
	booting         = defineMetric(gauge, "hinit_booting", nil, "1 while the boot runs.")
	stopping        = defineMetric(gauge, "hinit_stopping", nil, "1 while the container shuts down.")
	bootStepTime    = defineMetric(gauge, "hinit_boot_step_duration_seconds", []string{"step"}, "How long a step of the boot took.")
	bootStepFailed  = defineMetric(gauge, "hinit_boot_step_failed", []string{"step"}, "1 when the step failed.")
	reexecs         = defineMetric(counter, "hinit_reexecutions_total", nil, "How often hinit has replaced its own program.")
	orphans         = defineMetric(counter, "hinit_orphans_reaped_total", nil, "Orphans that hinit reaped.")
	leaseHeld       = defineMetric(gauge, "hinit_lease_held", nil, "1 when this hinit supervises the profiles of the data volume, 0 when another one does; missing if the volume has no lock.")
	goroutines      = defineMetric(gauge, "hinit_goroutines", nil, "Goroutines of hinit itself.")
	ownCPU          = defineMetric(counter, "hinit_process_cpu_seconds_total", nil, "Processor time of hinit itself.")
	ownMemory       = defineMetric(gauge, "hinit_process_resident_memory_bytes", nil, "Resident memory of hinit itself.")
	ownFDs          = defineMetric(gauge, "hinit_process_open_fds", nil, "Open descriptors of hinit itself; missing for users who may not count them.")
	ownThreads      = defineMetric(gauge, "hinit_process_threads", nil, "Threads of hinit itself.")
	services        = defineMetric(gauge, "hinit_services", nil, "Number of services.")
	omittedServices = defineMetric(gauge, "hinit_services_omitted", nil, "Services without metrics, because there are more than the limit.")

	serviceUp           = defineMetric(gauge, "hinit_service_up", perService, "1 when the service is up.")
	serviceReady        = defineMetric(gauge, "hinit_service_ready", perService, "1 when the service has reported readiness, or is up and cannot report it.")
	serviceProblem      = defineMetric(gauge, "hinit_service_problem", []string{"service", "profile", "kind"}, "1 for each kind of problem of the service; other kinds have no series.")
	checkFailing        = defineMetric(gauge, "hinit_service_check_failing", []string{"service", "profile", "check"}, "1 when this check fails, 0 when it does not.")
	serviceWanted       = defineMetric(gauge, "hinit_service_wanted", perService, "1 when the service is wanted up.")
	serviceState        = defineMetric(gauge, "hinit_service_state", []string{"service", "profile", "state"}, "1 for the state of the service; other states have no series.")
	stateSince          = defineMetric(gauge, "hinit_service_state_since_timestamp_seconds", perService, "When the present state began, in seconds since 1970.")
	crashLoop           = defineMetric(gauge, "hinit_service_crash_loop", perService, "1 when the service has too many fast exits.")
	consecutiveFailures = defineMetric(gauge, "hinit_service_consecutive_failures", perService, "Fast exits in a row.")
	serviceDrifted      = defineMetric(gauge, "hinit_service_drifted", perService, "1 when the service runs with an older configuration.")
	restarts            = defineMetric(counter, "hinit_service_restarts_total", perCause, "Starts by hinit itself after an exit, by the cause of the exit.")
	exits               = defineMetric(counter, "hinit_service_exits_total", perCause, "Ends of runs, by cause. An end counts when its cause is certain: after two seconds, a clean one at the next start.")
	lastExit            = defineMetric(gauge, "hinit_service_last_exit_timestamp_seconds", perService, "When the last run ended, in seconds since 1970.")
	stopTime            = defineMetric(gauge, "hinit_service_last_stop_duration_seconds", perService, "Duration of the last stop, from the signal to the last process; missing once hinit has dropped the event.")
	cpu                 = defineMetric(counter, "hinit_service_cpu_seconds_total", perService, "Processor time of the service's processes and their ended children.")
	memory              = defineMetric(gauge, "hinit_service_memory_bytes", perService, "Resident memory of all processes of the service; shared pages count in each.")
	processes           = defineMetric(gauge, "hinit_service_processes", perService, "Processes of the service.")
	threads             = defineMetric(gauge, "hinit_service_threads", perService, "Threads of the service.")
	fds                 = defineMetric(gauge, "hinit_service_open_fds", perService, "Open descriptors of the service's processes; missing for users who may not count them.")
	logLines            = defineMetric(counter, "hinit_service_log_lines_total", perService, "Lines that the service has written.")
	logBytes            = defineMetric(counter, "hinit_service_log_bytes_total", perService, "Bytes of these lines.")
	logGaps             = defineMetric(counter, "hinit_service_log_gap_lines_total", []string{"service", "profile", "where"},
		"Lines that are missing, by where: the file, the console, or both because of a rate limit (rate).")
	taskDone         = defineMetric(gauge, "hinit_task_done", perService, "1 when the last run of a task ended by itself with exit code 0, otherwise 0; other services have no series.")
	nextRun          = defineMetric(gauge, "hinit_task_next_run_timestamp_seconds", perService, "When the schedule starts the task next, in seconds since 1970.")
	nextStart        = defineMetric(gauge, "hinit_service_next_start_timestamp_seconds", perService, "When hinit starts the service next by itself, in seconds since 1970; missing without such a time.")
	forwardedRecords = defineMetric(counter, "hinit_forward_records_total", []string{"result"}, "Records that hinit forward has sent (sent), and records that the receiver refused (refused).")
	forwardGaps      = defineMetric(counter, "hinit_forward_gaps_total", nil, "Gaps: lines or events were removed before hinit forward could send them.")
	forwardFailures  = defineMetric(counter, "hinit_forward_failures_total", nil, "Attempts of hinit forward to send that failed.")
	forwardDelay     = defineMetric(gauge, "hinit_forward_lag_seconds", nil, "Age of the oldest record that hinit forward is sending, 0 when all is sent; missing if it never ran.")
	logFault         = defineMetric(gauge, "hinit_service_log_fault", perService, "1 while the log file cannot be written.")
)
