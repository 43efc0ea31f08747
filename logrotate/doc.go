// Package logrotate carries a service's output from its stdout and stderr pipes, in whole lines, to two sinks. These are the
// container's stdout and stderr (the console) and a rotated file with timestamps.
//
// A [Set] holds one [Log] a service. [Log.Pipes] makes the two pipes of one run. They live until their last writer is gone. So
// the pipes of an old run, kept open by a grandchild, are read beside the new ones.
//
// # Promises
//
//   - Lines are whole in both sinks: bytes of two streams never mix within a line. A last line without a newline gets one
//     at the end of its pipe. Lines of one stream keep their order.
//   - The file is the durable sink. Every line that reached the pipe is in it exactly once, or is counted in a gap marker at
//     the place where it is missing. Rotation happens between lines.
//   - The console loses nothing while its reader reads: a service with more lines than the reader takes waits, with at most its share
//     queued, and the others go on. Only when the reader has taken nothing for [Options].ConsoleStall whole lines are left out, and a
//     notice with their exact number stands in their place. The file never waits for the console.
//   - A fault of the file (full disk, no permission, removed directory) never ends the service or the console copy. It is
//     reported once and heals by itself.
//   - The calls of the supervisor's loop never wait for a disk, a pipe, or a lock that is held across either.
//   - A name below a directory that the agent can write is only used with the agent's file-system identity, and a symbolic
//     link in its place is refused.
//
// # Lines in the file
//
// Each is "YYYY-MM-DD HH:MM:SS.nnnnnnnnn", local time, two spaces, and the line (contract, section 7). One batch of lines
// that was read together has one timestamp, and within a file timestamps are taken in the order of the lines.
//
// A line longer than Options.MaxLine is split, in both sinks, into pieces that are lines of their own. Every piece but the last
// ends with [SplitEnd], every piece but the first begins with [SplitBegin]. No byte is left out, and no UTF-8 sequence is cut.
// Joining the pieces without the marks gives the line.
//
// With [Limits].Rate, lines beyond it are in no sink: a line "[hinit] suppressed N lines here" stands for them.
//
// # Floods
//
// A pipe is read as soon as there is something in it. Very many small reads change that: the pipe is made larger, taken from the
// runtime's poller, and read one to four milliseconds apart. That ends when a pause brings little.
//
// # Files
//
// This package opens a log itself (O_NOFOLLOW, O_EXCL when it creates, mode 0644) and writes through lumberjack, which gets the open
// file as /proc/self/fd/N (decision record 6). The own descriptor stays open beside it: fstat tells that the file was unlinked or
// truncated, and ftruncate removes a line that a full disk has cut. Package archive rotates and prunes. Lumberjack's clean-up
// goroutine never ends, so the next file takes over the writer of a file that is closed for good.
//
// A file has mode 0644 while it is written and 0744 once its writer has finished it, as with s6-log. s6-log goes on with a
// finished file and sets any other aside as @LABEL.u. So a volume goes back to s6 without a cut in its logs.
//
// # Compression
//
// With [Limits].Compress archives become gzip files, a second or more after their rotation, see package gzipped. The pumps have
// nothing to do with it.
//
// # Goroutines
//
// A run has two (one a pipe, no buffer while it waits), a console stream one, a file one inside lumberjack. Short ones retry a
// faulted file, close a file, compress archives, and answer [Log.Tail]. [Set.Close] ends all but lumberjack's.
package logrotate
