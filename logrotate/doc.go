// Package logrotate carries a service's output from its stdout and stderr pipes, in whole lines, to two sinks. One sink is the
// console: the container's stdout and stderr. The other is a rotated file with timestamps.
//
// A [Set] holds one [Log] for each service. [Log.Pipes] makes the two pipes of one run. A run is one process of a service, from
// start to end. The package reads a pipe until all its writers have closed it. So if a descendant outlives its run, its output
// isn't lost: its pipes are read together with the pipes of the next run.
//
// # Promises
//
//   - Lines are whole in both sinks: bytes of two streams never mix within a line. A last line without a newline gets one at the
//     end of its pipe. Lines of one stream keep their order.
//   - The file is the durable sink. Every line that reached the pipe is in it exactly once, or is counted in a gap marker at the
//     place where it is missing. Rotation happens between lines.
//   - The console loses nothing as long as its reader keeps reading. A service that writes faster than the reader has to wait,
//     and the other services continue. Lines are left out only if the reader has read nothing for [Options].ConsoleStall. A
//     notice in their place gives their exact number. The file never waits for the console.
//   - A fault of the file (full disk, no permission, removed directory) never stops the service or the console copy. It is
//     reported once, and writing resumes automatically.
//   - Calls from the supervisor's loop never wait for a disk, for a pipe, or for a lock that is held during I/O on one of them.
//   - Files below a directory that the agent can write are opened only with the agent's file-system identity. A symbolic link in
//     place of a file is refused.
//
// # Lines in the file
//
// A line in the file is "YYYY-MM-DD HH:MM:SS.nnnnnnnnn", local time, two spaces, and the line of the service (contract, section
// 7). All lines of one read have the same timestamp. The timestamps never decrease within a file, unless the local clock is set
// back.
//
// A line longer than Options.MaxLine is split, in both sinks, into pieces, and each piece is a line. Every piece but the last
// ends with [SplitEnd]; every piece but the first begins with [SplitBegin]. No byte is left out, and no UTF-8 sequence is cut.
// Without these marks, the joined pieces are the original line.
//
// With [Limits].Rate, lines beyond the rate are written to neither sink. A line "[hinit] suppressed N lines here" replaces them.
//
// # Floods
//
// A pump is the goroutine that reads one pipe. Normally it reads as soon as the pipe has data. When a service causes very many
// small reads (a flood), the pump enlarges the pipe and takes it out of the runtime's poller. It then reads the pipe only every
// one to four milliseconds. The flood ends when little data arrives during such a pause.
//
// # Files
//
// This package opens a log itself (O_NOFOLLOW, O_EXCL when it creates, mode 0644). It writes through lumberjack, which opens the
// log as /proc/self/fd/N (decision record 6). The package keeps its own descriptor: fstat shows whether the file was unlinked or
// truncated. ftruncate removes an incomplete line after a full disk has cut a write short. Package archive rotates and prunes.
// Lumberjack's clean-up goroutine never ends, so the writer of a closed file is reused for another file.
//
// A file has mode 0644 while hinit writes it and 0744 when it is complete, as with s6-log. s6-log appends to a complete file, and
// renames an incomplete one to @LABEL.u. So s6 can use the volume later and continue the same logs.
//
// # Compression
//
// With [Limits].Compress archives become gzip files, a second or more after their rotation, see package packer. The pumps don't
// wait for the compression.
//
// # Goroutines
//
// Each run has two goroutines, one for each pipe; they hold no buffer while they wait. Each console stream has one goroutine.
// Each file has one inside lumberjack. Short-lived goroutines retry after a fault, close a file, compress archives, and answer
// [Log.Tail]. [Set.Close] ends all goroutines except lumberjack's.
package logrotate
