// Package forward sends logs and events to where they are collected: OTLP, Loki, syslog, or files of JSON lines.
//
// It reads the rotated files of services, which are its only buffer: a receiver that is slow or down holds up nobody but the reading, and
// what the rotation removes meanwhile is a gap that is told and counted. It promises that every other line comes at least once: positions
// are saved after a receiver has taken the lines, and found again after rotation, compression and a restart by what is in the file. At
// most one batch is in memory. [Forwarder.Run] owns no goroutine.
package forward
