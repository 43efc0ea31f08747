package proc_test

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"hinit/internal/proc"
	"hinit/internal/proc/limits"
	"hinit/internal/testkit"
	"hinit/internal/testproc"
)

func TestMain(m *testing.M) {
	testproc.Main()
	if len(os.Args) > 0 && os.Args[0] == proc.LimitsName {
		code, err := limits.Main(os.Args)
		fmt.Fprintln(os.Stderr, err)
		os.Exit(code)
	}
	proc.SetSelfExe(testproc.Argv("")[0])
	testkit.IsolateProcess()
	goleak.VerifyTestMain(m)
}
