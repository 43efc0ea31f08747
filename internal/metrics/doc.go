// Package metrics makes metrics from the status that hinit reports on its control socket, and from the processes of services in
// /proc. It serves them as OpenMetrics over HTTP for Prometheus, and as text for a textfile collector.
//
// The number of series is bounded: at most [Collector].Most services have metrics, and causes and states come from fixed lists.
// If hinit does not answer, answers late or sends an invalid answer, hinit_up is 0, and that is no error. It links no code of PID
// 1, and PID 1 links none of its code. It owns no goroutine.
package metrics
