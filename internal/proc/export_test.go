package proc

// SetSelfExe sets the program that a new process executes as [LimitsName].
func SetSelfExe(path string) { selfExe = path }
