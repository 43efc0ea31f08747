package cluster

import "syscall"

// PauseServer stops the API server with SIGSTOP. The caller resumes it with the returned function.
func (c *Cluster) PauseServer() (resume func(), err error) {
	if err := c.server.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return nil, err
	}
	// Ignore the error: the signal fails only if the API server has ended.
	return func() { _ = c.server.cmd.Process.Signal(syscall.SIGCONT) }, nil
}
