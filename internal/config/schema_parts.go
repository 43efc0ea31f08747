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
		{path: "max_size_mb", is: between(1, 1<<20), at: func(t *T) any { return &of(t).MaxSizeMB }},
		{path: "archives", is: between(0, 10000), at: func(t *T) any { return &of(t).Archives }},
		{path: "max_age", is: notNegative, at: func(t *T) any { return &of(t).MaxAge }},
		{path: "quota_mb", is: between(0, 1<<30), at: func(t *T) any { return &of(t).QuotaMB }},
		{path: "min_free_mb", is: between(0, 1<<30), at: func(t *T) any { return &of(t).MinFreeMB }},
		{path: "rate_limit", is: between(0, 1<<30), at: func(t *T) any { return &of(t).RateLimit }},
		{path: "compress", is: oneOf(CompressNone, CompressGzip), at: func(t *T) any { return &of(t).Compress }},
	}
	return below(prefix, inherited, fields)
}

// restartFields is the schema of a restart policy at prefix; inherited is the prefix of the keys it follows, "" for none.
func restartFields[T any](prefix, inherited string, of func(*T) *Restart) []field[T] {
	fields := []field[T]{
		{
			path: "policy", short: true, is: oneOf(RestartAlways, RestartOnFailure, RestartNever, RestartOnSuccess),
			at: func(t *T) any { return &of(t).Policy },
		},
		{path: "max_restarts", is: between(0, 1000), at: func(t *T) any { return &of(t).MaxRestarts }},
		{path: "max_restarts_window", is: positive, at: func(t *T) any { return &of(t).MaxRestartsWindow }},
		{path: "initial", is: positive, at: func(t *T) any { return &of(t).Initial }},
		{path: "factor", is: between(1.0, 1000), at: func(t *T) any { return &of(t).Factor }},
		{path: "max", is: positive, at: func(t *T) any { return &of(t).Max }},
		{path: "jitter", is: between(0, 0.5), at: func(t *T) any { return &of(t).Jitter }},
		{path: "reset_after", is: positive, at: func(t *T) any { return &of(t).ResetAfter }},
		{path: "park_on", is: exitCodes, at: func(t *T) any { return &of(t).ParkOn }},
		{path: "immediate_on", is: exitCodes, at: func(t *T) any { return &of(t).ImmediateOn }},
		{path: "crash_loop_count", is: between(2, 1000), at: func(t *T) any { return &of(t).CrashLoopCount }},
		{path: "crash_loop_window", is: positive, at: func(t *T) any { return &of(t).CrashLoopWindow }},
	}
	return below(prefix, inherited, fields)
}

// stopFields is to [Stop] what restartFields is to [Restart].
func stopFields[T any](prefix, inherited string, of func(*T) *Stop) []field[T] {
	fields := []field[T]{
		{path: "signal", is: kind{name: "signal: `" + strings.Join(signalNames(), "`, `") + "`"}, at: func(t *T) any { return &of(t).Signal }},
		{path: "grace", is: positive, at: func(t *T) any { return &of(t).Grace }},
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
