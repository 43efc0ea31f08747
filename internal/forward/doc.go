// Package forward sends logs and events to a collector: as OTLP, to Loki, as syslog, or as JSON lines in a file.
//
// It reads the log files, which are its only buffer, across their rotations. A slow or unreachable receiver delays only the
// reading of the logs, not the services. Each line arrives at least once: the position in a log is saved after the receiver has
// accepted the line. A position is the time of the last line and a count, so it stays valid after rotation, compression and a
// restart. If rotation removes lines before they are sent, the receiver gets a record of the gap, and the gap is counted. At most
// one batch is in memory.
//
// A record is encoded for OTLP, Loki or syslog, or stored in a file as JSON. A [Sink] sends the records, and Run repeats a send
// that fails. [Forwarder.Run] owns a goroutine for each log, and ends these goroutines before it returns.
package forward
