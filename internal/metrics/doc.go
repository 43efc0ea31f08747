// Package metrics makes metrics from the status that hinit reports on its control socket, and from the services' processes in
// /proc. It serves the metrics as OpenMetrics over HTTP for Prometheus, and writes them as text for a textfile collector.
//
// The number of series is bounded: at most [Collector].MaxServices services have metrics, and causes and states come from fixed
// lists. If hinit does not answer, answers late or sends an invalid answer, hinit_up is 0, and a collection still succeeds.
// The package doesn't use code of PID 1, and PID 1 doesn't use this package. The package owns no goroutine.
package metrics
