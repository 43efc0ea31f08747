package cluster

import "syscall"

// PauseServer stops the API server in the middle of what it does, until the returned function lets it go on.
func (c *Cluster) PauseServer() (goOn func(), err error) {
	if err := c.server.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return nil, err
	}
	return func() { _ = c.server.cmd.Process.Signal(syscall.SIGCONT) }, nil // it can only fail for one that has ended
}
