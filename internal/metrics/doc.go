// Package metrics makes metrics from the status that hinit reports on its control socket, and from the services' processes in
// /proc. It serves the metrics as OpenMetrics over HTTP for Prometheus, and writes them as text for a textfile collector.
//
// The number of series is limited: at most [Collector].MaxServices services have metrics, and causes and states come from fixed
// lists. If hinit does not answer in time or sends an invalid answer, hinit_up is 0, and the collection still succeeds. PID 1
// contains no code of this package. The package owns no goroutine.
package metrics
