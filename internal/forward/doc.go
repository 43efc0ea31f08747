// Package forward sends logs and events to a collector: as OTLP, to Loki, as syslog, or as JSON lines in a file.
//
// It reads the rotated log files, which are its only buffer. A receiver that is slow or down delays the reading and no service. Every
// line comes at least once: the position in a log is saved after the receiver has taken the line. A position is the time of the last
// line and a count, so it survives rotation, compression and a restart. Lines that the rotation removes before they are sent are
// told and counted as a gap. At most one batch is in memory.
//
// A record is encoded by one of three encoders (otlp, loki, syslog; the file takes a record as it is) and carried by one sender, which
// repeats what fails. [Forwarder.Run] owns a goroutine for each log, and ends them before it returns.
package forward
