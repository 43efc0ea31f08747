//go:build !linux || (!amd64 && !arm64)

package proc

// sentHandler: there is none here. A signal that the Go runtime takes for sent is ignored, and not counted.
var sentHandler uintptr
