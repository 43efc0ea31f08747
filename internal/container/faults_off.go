//go:build !faults

package container

func (c *container) faults() {}
