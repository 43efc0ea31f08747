//go:build !faults

package container

// faults does nothing in a released binary.
func (c *container) faults() {}
