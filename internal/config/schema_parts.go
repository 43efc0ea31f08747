package config

import (
	"strings"
)

// profileLogFields is the schema of logs.profiles.NAME.
func profileLogFields() []field[LogLimits] {
	return logFields("", "logs.", func(l *LogLimits) *LogLimits { return l })
}

// logFields is to [LogLimits] what restartFields is to [Restart].
func logFields[T any](prefix, inherited string, of func(*T) *LogLimits) []field[T] {
	fields := []field[T]{
		{
			path: "max_size_mb", check: checkRange(1, 1<<20),
			doc: "Size in MB at which a log file is rotated.",
			at:  func(t *T) any { return &of(t).MaxSizeMB },
		},
		{
			path: "archives", check: checkRange(0, 10000),
			doc: "Rotated files kept for each log.",
			at:  func(t *T) any { return &of(t).Archives },
		},
		{
			path: "max_age", check: checkNotNegative,
			doc: "Age after which a rotated file is removed; 0s: none is. It is looked at when something is written.",
			at:  func(t *T) any { return &of(t).MaxAge },
		},
		{
			path: "quota_mb", check: checkRange(0, 1<<30),
			doc: "MB of all files of a log together; 0: no limit besides size and number.",
			at:  func(t *T) any { return &of(t).QuotaMB },
		},
		{
			path: "min_free_mb", check: checkRange(0, 1<<30),
			doc: "MB that stay free on the volume: with less, no log file is written, as if the disk were full; 0: no limit.",
			at:  func(t *T) any { return &of(t).MinFreeMB },
		},
		{
			path: "rate_limit", check: checkRange(0, 1<<30),
			doc: "Lines a second that are taken of one service; a line says how many were more. 0: all are taken.",
			at:  func(t *T) any { return &of(t).RateLimit },
		},
		{
			path: "compress", typ: oneOf(CompressNone, CompressGzip), check: checkOneOf(CompressNone, CompressGzip),
			doc: "How rotated files are compressed, from a second after their rotation on.",
			at:  func(t *T) any { return &of(t).Compress },
		},
	}
	return below(prefix, inherited, fields)
}

// restartFields is the schema of a restart policy at prefix; inherited is the prefix of the keys it follows, "" for none.
func restartFields[T any](prefix, inherited string, of func(*T) *Restart) []field[T] {
	fields := []field[T]{
		{
			path: "policy", short: true, typ: oneOf(RestartAlways, RestartOnFailure, RestartNever, RestartOnSuccess),
			check: checkOneOf(RestartAlways, RestartOnFailure, RestartNever, RestartOnSuccess),
			doc: "After which ends it is restarted: all, those with another exit code than 0 or by a signal, none, those with exit code 0. " +
				"One that is not restarted is `down` after exit code 0, else `failed`. Short: `restart: on-failure`.",
			at: func(t *T) any { return &of(t).Policy },
		},
		{
			path: "max_restarts", check: checkRange(0, 1000),
			doc: "After so many restarts within `max_restarts_window` the next end is the last: then it is `failed`. 0: it is restarted for ever.",
			at:  func(t *T) any { return &of(t).MaxRestarts },
		},
		{
			path: "max_restarts_window", check: checkPositive,
			doc: "The time over which restarts are counted for that.",
			at:  func(t *T) any { return &of(t).MaxRestartsWindow },
		},
		{
			path: "initial", check: checkPositive,
			doc: "Delay before the first restart.",
			at:  func(t *T) any { return &of(t).Initial },
		},
		{
			path: "factor", check: checkFloat(1, 1000),
			doc: "Each further delay is this many times the last one; at least 1.",
			at:  func(t *T) any { return &of(t).Factor },
		},
		{
			path: "max", check: checkPositive,
			doc: "The longest delay.",
			at:  func(t *T) any { return &of(t).Max },
		},
		{
			path: "jitter", check: checkFloat(0, 0.5),
			doc: "Each delay is varied by up to this part of it, 0 to 0.5.",
			at:  func(t *T) any { return &of(t).Jitter },
		},
		{
			path: "reset_after", check: checkPositive,
			doc: "Time up after which a life was healthy: the first crash after it is restarted at once, and the delay starts over at `restart.initial`.",
			at:  func(t *T) any { return &of(t).ResetAfter },
		},
		{
			path: "park_on", check: checkCodes, typ: "list of exit codes",
			doc: "Exit codes after which it is not restarted until its inputs change or an operator starts it.",
			at:  func(t *T) any { return &of(t).ParkOn },
		},
		{
			path: "immediate_on", check: checkCodes, typ: "list of exit codes",
			doc: "Exit codes after which it is restarted at once; they count as no failure.",
			at:  func(t *T) any { return &of(t).ImmediateOn },
		},
		{
			path: "crash_loop_count", check: checkRange(2, 1000),
			doc: "So many exits within `crash_loop_window` are shown as a crash loop.",
			at:  func(t *T) any { return &of(t).CrashLoopCount },
		},
		{
			path: "crash_loop_window", check: checkPositive,
			doc: "The time over which exits are counted for that.",
			at:  func(t *T) any { return &of(t).CrashLoopWindow },
		},
	}
	return below(prefix, inherited, fields)
}

// stopFields is to [Stop] what restartFields is to [Restart].
func stopFields[T any](prefix, inherited string, of func(*T) *Stop) []field[T] {
	fields := []field[T]{
		{
			path: "signal", typ: "signal: `" + strings.Join(signalNames(), "`, `") + "`",
			doc: "Signal that asks the process to stop.",
			at:  func(t *T) any { return &of(t).Signal },
		},
		{
			path: "grace", check: checkPositive,
			doc: "Time until KILL follows when an operator stops one service.",
			at:  func(t *T) any { return &of(t).Grace },
		},
	}
	return below(prefix, inherited, fields)
}

func below[T any](prefix, inherited string, fields []field[T]) []field[T] {
	for i := range fields {
		if inherited != "" {
			fields[i].inherits = inherited + fields[i].path
		}
		fields[i].path = prefix + fields[i].path
	}
	return fields
}
