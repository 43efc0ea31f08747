// Package forward sends logs and events to a collector: as OTLP, to Loki, as syslog, or as JSON lines in a file.
//
// It reads the rotated log files, which are its only buffer. A receiver that is slow or down delays the reading and no service. Every
// line comes at least once: the position in a log is saved after the receiver has taken the line. A position is the time of the last
// line and a count, so it survives rotation, compression and a restart. Lines that the rotation removes before they are sent are
// told and counted as a gap. At most one batch is in memory.
//
// One of three encoders (otlp, loki, syslog) encodes a record; the file takes it as it is. One sender carries it, and repeats a
// send that fails. [Forwarder.Run] owns a goroutine for each log, and ends them before it returns.
package forward
