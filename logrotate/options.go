package logrotate

import (
	"cmp"
	"os"
	"time"

	"hinit/internal/fsutil"
	"hinit/logrotate/gzipped"
)

// ConsoleMode is the format of a service's lines on the container's stdout and stderr, as the configuration spells it.
type ConsoleMode string

const (
	// Raw copies lines unchanged.
	Raw ConsoleMode = "raw"
	// Prefixed writes the profile before each line: "coder | line".
	Prefixed ConsoleMode = "prefixed"
	// JSON writes one object a line with the strings time (RFC 3339), profile, stream ("stdout" or "stderr") and message. Bytes
	// that aren't UTF-8 become U+FFFD.
	JSON ConsoleMode = "json"
	// Off copies no line of a service. The init's own lines are still written, in Raw.
	Off ConsoleMode = "off"
)

// Options configure a [Set]. The zero value of each field means its default.
type Options struct {
	// MaxSize limits the size of a file in bytes: it is rotated before a line that would exceed it. A single longer line gets a
	// file of its own. Default 1,000,000.
	MaxSize int64
	// Archives is how many rotated files of a service are kept. Default 10; negative keeps none.
	Archives int
	// MaxLine is the length in bytes above which a line is split (see the package comment). Default 64 KiB, at least 256.
	MaxLine int
	// Tail is how many of a run's last lines are kept for [Log.Tail]. Default 20; negative keeps none.
	Tail int
	// Console is the format of lines on the console. Default Raw.
	Console ConsoleMode
	// ConsoleStall is how long the console's reader may take nothing before lines are left out there. Until then, a service that
	// writes faster than the reader waits. Default 1 s; negative never waits.
	ConsoleStall time.Duration
	// Mask replaces secrets on the console by [redact.Masked], in the init's own lines too. Secrets are tokens of known shapes,
	// lines of private keys, and the values given to [Log.Hide]. Files keep what the service wrote.
	Mask bool
	// Stdout and Stderr are the container's streams. The Set writes to their descriptors. It never closes them or changes their
	// flags, because other processes share them. A nil stream discards its lines.
	Stdout, Stderr *os.File
	// Actor is the identity that files are used with. Nil is the process's own.
	Actor *fsutil.Actor
	// Pack compresses archives. With nil, [Limits].Compress has no effect.
	Pack gzipped.Packer
	// Wrote is called after lines of a service were written. It must not block. It may be nil.
	Wrote func()
	// Warn is called once when a fault begins and once when it ends, in a goroutine of this package. service is the name given to
	// Open, or "" for the console. Warn must not block. Of the methods of Log and Set it may call only a writer from
	// [Set.Console]. Nil discards warnings.
	Warn func(service, message string)

	period       time.Duration // replaces the constant period; tests set a shorter time
	tailPatience time.Duration // replaces tailPatience; tests on slow machines set a longer time
	closeReserve time.Duration // replaces closeReserve; the same tests set a longer time
	floodWindow  time.Duration // replaces floodWindow; tests that need a flood set a longer time
	floodPause   time.Duration // replaces floodPause; the same tests set another time
}

// withDefaults returns o with the defaults for all zero fields.
func (o Options) withDefaults() Options {
	if o.MaxSize <= 0 {
		o.MaxSize = 1_000_000
	}
	if o.MaxLine <= 0 {
		o.MaxLine = 64 << 10
	}
	o.MaxLine = max(o.MaxLine, 256)
	o.Archives = count(o.Archives, 10)
	o.Tail = count(o.Tail, 20)
	o.Console, o.ConsoleStall = cmp.Or(o.Console, Raw), cmp.Or(o.ConsoleStall, time.Second)
	if o.Actor == nil {
		o.Actor = fsutil.Self()
	}
	if o.Wrote == nil {
		o.Wrote = func() {}
	}
	if o.Warn == nil {
		o.Warn = func(string, string) {}
	}
	o.period = cmp.Or(o.period, period)
	o.tailPatience = cmp.Or(o.tailPatience, tailPatience)
	o.closeReserve = cmp.Or(o.closeReserve, closeReserve)
	o.floodWindow = cmp.Or(o.floodWindow, floodWindow)
	return o
}

// count returns n, the default for 0, and 0 for a negative n.
func count(n, byDefault int) int {
	if n == 0 {
		return byDefault
	}
	return max(n, 0)
}
