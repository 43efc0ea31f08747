//go:build !faults

package container

// faults does nothing in a release, see faults_on.go.
func (c *container) faults() {}
