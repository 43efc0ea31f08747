package logrotate

import (
	"cmp"
	"os"
	"time"

	"hinit/internal/fsutil"
	"hinit/logrotate/gzipped"
)

// ConsoleMode is the format in which a service's lines appear on the container's stdout and stderr. Its values are the names in
// the configuration.
type ConsoleMode string

const (
	// Raw copies lines unchanged.
	Raw ConsoleMode = "raw"
	// Prefixed writes the name of the profile before each line: "coder | line".
	Prefixed ConsoleMode = "prefixed"
	// JSON writes one object for each line, with the strings time (RFC 3339), profile, stream ("stdout" or "stderr") and message.
	// Bytes that aren't UTF-8 become U+FFFD.
	JSON ConsoleMode = "json"
	// Off hides the lines of services. The init's own lines still appear, unchanged.
	Off ConsoleMode = "off"
)

// Options configures a [Set]. A zero field means its default.
type Options struct {
	// MaxLine is the length in bytes above which a line is split (see the package comment). Default 64 KiB, at least 256.
	MaxLine int
	// TailLines is the number of a run's last lines that are kept for [Log.Tail]. Default 20.
	TailLines int
	// Console is the format of lines on the console. Default Raw.
	Console ConsoleMode
	// ConsoleStall is how long the reader of the console may read nothing before lines are left out there. Until then, a service
	// that writes faster than the reader waits. Default 1 s; negative: services never wait.
	ConsoleStall time.Duration
	// Mask replaces secrets on the console with [redact.Masked], also in the init's own lines. Secrets are tokens of known
	// shapes, lines of private keys, and the values given to [Log.HideSecrets]. Files are written unmasked.
	Mask bool
	// Stdout and Stderr are the container's streams. The Set writes to their descriptors. It never closes them or changes their
	// flags, because other processes share them. Lines for a nil stream are discarded.
	Stdout, Stderr *os.File
	// Actor is the identity that opens all files. Nil means the identity of the process.
	Actor *fsutil.Actor
	// PackArchives compresses archives. If PackArchives is nil, [Limits].Compress has no effect.
	PackArchives gzipped.Packer
	// OnWrite is called by a pump after lines of a service have been written to both sinks. It must be set, and must not block.
	OnWrite func()
	// Warn is called by a goroutine of this package when a fault begins and when it ends. Faults of the console are reported at
	// most twice a minute. service is the name given to Open, or "" for the console. Warn must be set. It must not block, and
	// must not call a method of Log or Set; it may write to [Set.Console].
	Warn func(service, message string)

	limits       Limits        // Limits in place of defaultLimits; only tests set them.
	period       time.Duration // Time in place of the constant retryPeriod; tests set a shorter one.
	tailTimeout  time.Duration // Time in place of the constant tailTimeout; tests on slow machines set a longer one.
	closeReserve time.Duration // Time in place of the constant closeReserve; tests on slow machines set a longer one.
	floodWindow  time.Duration // Time in place of the constant floodWindow; tests that need a flood set a longer one.
	floodPause   time.Duration // Lower limit for the pauses of a flood; only tests set it.
}

// withDefaults returns o with the defaults for all zero fields.
func (o Options) withDefaults() Options {
	o.MaxLine = max(cmp.Or(o.MaxLine, 64<<10), 256)
	o.TailLines = cmp.Or(o.TailLines, 20)
	o.Console, o.ConsoleStall = cmp.Or(o.Console, Raw), cmp.Or(o.ConsoleStall, time.Second)
	o.Actor = cmp.Or(o.Actor, fsutil.ProcessActor())
	o.limits = cmp.Or(o.limits, defaultLimits)
	o.period = cmp.Or(o.period, retryPeriod)
	o.tailTimeout = cmp.Or(o.tailTimeout, tailTimeout)
	o.closeReserve = cmp.Or(o.closeReserve, closeReserve)
	o.floodWindow = cmp.Or(o.floodWindow, floodWindow)
	return o
}
