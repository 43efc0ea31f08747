// Package forward sends logs and events to a collector: as OTLP, to Loki, as syslog, or as JSON lines in a file.
//
// It reads the rotated log files, which are its only buffer. A slow or unreachable receiver delays the reading and no service. Each
// line arrives at least once: the position in a log is saved after the receiver has accepted the line. A position is the time of the
// last line and a count, so it stays valid after rotation, compression and a restart. If the rotation removes lines before they are
// sent, the receiver gets a record of the gap, and it is counted. At most one batch is in memory.
//
// One of three encoders (otlp, loki, syslog) encodes a record; a file stores it as JSON. One sender sends it, and repeats a send
// that fails. [Forwarder.Run] owns a goroutine for each log, and ends them before it returns.
package forward
