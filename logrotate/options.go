package logrotate

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"time"

	"hinit/internal/fsutil"
	"hinit/logrotate/gzipped"
)

// ConsoleMode says how a service's lines look on the container's stdout and stderr.
type ConsoleMode int

const (
	// Raw copies lines as they are.
	Raw ConsoleMode = iota
	// Prefixed puts the profile before each line: "coder | line".
	Prefixed
	// JSON writes one object a line with the strings time (RFC 3339), profile, stream ("stdout" or "stderr") and message.
	// Bytes that aren't UTF-8 become U+FFFD.
	JSON
	// Off copies no line of a service. The init's own lines are still written, raw.
	Off
)

// consoleModes are the names of the modes, as the configuration spells them.
func consoleModes() [4]string { return [...]string{"raw", "prefixed", "json", "off"} }

// String returns the mode's name in the configuration.
func (m ConsoleMode) String() string {
	names := consoleModes()
	if m < 0 || int(m) >= len(names) {
		return fmt.Sprintf("ConsoleMode(%d)", int(m))
	}
	return names[m]
}

// ParseConsoleMode returns the mode of that name: raw, prefixed, json or off.
func ParseConsoleMode(name string) (ConsoleMode, error) {
	names := consoleModes()
	if m := slices.Index(names[:], name); m >= 0 {
		return ConsoleMode(m), nil
	}
	return Raw, fmt.Errorf("cannot use console mode %q: use raw, prefixed, json or off", name)
}

// Options configure a [Set]. The zero value of each field means its default.
type Options struct {
	// MaxSize is the size in bytes that a file doesn't pass: it is rotated before the line that would make it larger. A
	// single line that is larger by itself has a file of its own. Default 1,000,000.
	MaxSize int64
	// Archives is how many rotated files of a service are kept. Default 10; negative keeps none.
	Archives int
	// MaxLine is the length in bytes above which a line is split (see the package comment). Default 64 KiB, at least 256.
	MaxLine int
	// Tail is how many of a run's last lines are kept for [Log.Tail]. Default 20; negative keeps none.
	Tail int
	// Console says how lines look on the console. Default Raw.
	Console ConsoleMode
	// ConsoleStall is how long the reader of the console may take nothing before lines are left out there. Until then a service with
	// more lines than its reader takes waits. Default 1 s; negative never waits.
	ConsoleStall time.Duration
	// Mask puts [redact.Masked] in the place of secrets on the console, the init's own lines included. Secrets are tokens of known
	// shapes, lines of private keys, and the values given to [Log.Hide]. Files keep what the service wrote.
	Mask bool
	// Stdout and Stderr are the container's. They are written by descriptor, never closed, and their flags are never
	// changed, because other processes share them. A nil one discards.
	Stdout, Stderr *os.File
	// Actor is whose identity files are used with. Nil is the process's own.
	Actor *fsutil.Actor
	// Pack compresses archives. Nil: [Limits].Compress has no effect.
	Pack gzipped.Packer
	// Warn is called when a fault begins and when it ends, once each, from a goroutine of this package. service is the name given
	// to Open, or "" for the console. It must not block, and must not call a method of a Log or Set other than a writer from
	// [Set.Console]. Nil discards.
	Warn func(service, message string)

	period       time.Duration // of its name; tests need not wait for it
	tailPatience time.Duration // of its name; tests that say what an answer has to hold give a slow machine longer
	closeReserve time.Duration // likewise
	floodWindow  time.Duration // of its name; tests that need a flood have one on a slow machine too, with this
	floodPause   time.Duration // and this, which is the least that a pause lasts
}

// withDefaults returns o with every zero field filled in.
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
	o.ConsoleStall = cmp.Or(o.ConsoleStall, time.Second)
	if o.Actor == nil {
		o.Actor = fsutil.Self()
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

// count is how many n asks for: 0 is the default, less is none.
func count(n, byDefault int) int {
	if n == 0 {
		return byDefault
	}
	return max(n, 0)
}
