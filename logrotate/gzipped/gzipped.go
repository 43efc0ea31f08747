// Package gzipped is the interface between package logrotate, which asks for the compression of archives (rotated files), and
// package packer, which compresses them in another process. So PID 1 links no compression code. The package starts no
// goroutine.
package gzipped

import (
	"context"
	"time"
)

// DefaultMaxSize is the decompressed size, in bytes, above which package reader refuses an archive, unless the caller gives
// another limit.
const DefaultMaxSize = 256 << 20

// Archives describes one log whose archives a [Packer] must compress.
type Archives struct {
	// log directory
	Dir     string
	MaxSize int64 `json:"Most"` // Size in bytes above which an archive stays uncompressed.
}

// Result is the outcome for one log.
type Result struct {
	CallAgain bool   `json:"Again"` // Whether to call the Packer again later, because an archive was too young or the log has too many for one call.
	Error     string // Text of the error; "" if the call succeeded.
}

// Packer compresses the archives of logs. It skips archives whose rotation is less than young ago. It returns one result for
// each log, in the same order. The error means that nothing was compressed. Packer stops when ctx ends.
type Packer func(ctx context.Context, logs []Archives, young time.Duration) ([]Result, error)
