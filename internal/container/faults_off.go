//go:build !faults

package container

func (c *container) injectFaults() {}
