// Package metrics makes metrics from hinit's control socket and from the processes of services in /proc. It serves them as
// OpenMetrics over HTTP for Prometheus, and as text for a textfile collector.
//
// The number of series is bounded: at most the number of services that its [Collector] allows, with causes and states from closed
// lists. If hinit does not answer, answers late or sends an invalid answer, hinit_up is 0, and that is no error. It links nothing of
// PID 1, and PID 1 links nothing of it. It owns no goroutine.
package metrics
