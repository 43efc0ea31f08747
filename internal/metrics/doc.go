// Package metrics makes metrics from the status that hinit reports on its control socket, and from the services' processes in
// /proc. It serves them as OpenMetrics over HTTP for Prometheus, and writes them as text for a textfile collector.
//
// The number of series is limited: at most [Collector].MaxServices services have metrics, and causes and states are from fixed
// lists. If hinit does not answer, answers late or sends an invalid answer, hinit_up is 0, and a collection still succeeds. The
// package and PID 1 share no code. The package owns no goroutine.
package metrics
