// Package metrics makes metrics from hinit's control socket and from /proc, which tells about the processes of services. It
// serves them as OpenMetrics over HTTP for Prometheus, and as text for a textfile collector.
//
// It promises a bounded number of series: at most so many services as its [Collector] allows, with causes and states from closed
// lists. A hinit that does not answer, answers late or answers nonsense makes hinit_up 0 and no error. It links nothing of PID 1,
// and PID 1 links nothing of it. It owns no goroutine.
package metrics
