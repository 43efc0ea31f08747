// Package gzipped defines how package logrotate asks for the compression of archives (rotated files). Package packer implements
// the [Packer], and package reader reads compressed archives. The package starts no goroutine.
package gzipped

import (
	"context"
	"time"
)

// DefaultMaxSize is the default maximum, in bytes, of an archive's decompressed size when package reader reads it.
const DefaultMaxSize = 256 << 20

// Archives tells a [Packer] which archives of one log to compress.
type Archives struct {
	Dir  string
	Most int64 // size in bytes of the largest archive to compress
}

// Result is the outcome of compressing one log's archives.
type Result struct {
	Again bool   // some archives are still too young; call the Packer again
	Error string // text of the error, or "" if there was none
}

// Packer compresses the archives of logs. The parameter young is the minimum age: the Packer skips archives that were rotated
// more recently. It returns an error, or one result for each log in the same order. It stops when ctx ends.
type Packer func(ctx context.Context, logs []Archives, young time.Duration) ([]Result, error)
