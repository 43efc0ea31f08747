//go:build !faults

package main

// faults does nothing in a binary that is shipped.
func (c *container) faults() {}
