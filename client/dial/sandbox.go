package dial

import "path/filepath"

// SandboxSocket returns the path of the sandbox service's socket.
func SandboxSocket(lookup func(string) (string, bool)) string {
	if path, _ := lookup("HINIT_SANDBOX_SOCKET"); path != "" {
		return path
	}
	if dir, _ := lookup("HINIT_RUNTIME_DIR"); dir != "" {
		return filepath.Join(dir, "sandbox.sock")
	}
	return "/run/hinit/sandbox.sock"
}
