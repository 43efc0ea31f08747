package control

import (
	"os"
	"testing"

	"hinit/client"
	"hinit/supervisor"
)

func TestWhomTheKernelTakesFirst(t *testing.T) {
	here := os.Getpid()
	services := []*supervisor.Service{
		{Name: "small", Kind: supervisor.KindGateway, PID: here, OOMAdj: 800},
		{Name: "large", Kind: supervisor.KindGateway, PID: here, OOMAdj: 800},
		{Name: "cmd", Kind: supervisor.KindCmd, PID: here, OOMAdj: 700},
		{Name: "check/small/asks", Kind: supervisor.KindCheck, PID: here, OOMAdj: 1000},
	}
	// services in the order of the status
	views := []client.Service{{Name: "large", MemoryBytes: 2 << 20}, {Name: "small", MemoryBytes: 1 << 20}}
	if got := firstOOMVictim(services, views); got != "large" {
		t.Errorf("it takes %q first, want the larger one of equals", got)
	}
	if got := firstOOMVictim(services[2:], nil); got != "cmd" {
		t.Errorf("it takes %q first, want the CMD; a look of a check is no service", got)
	}
	if got := firstOOMVictim(nil, nil); got != "" {
		t.Errorf("it takes %q first where nothing runs", got)
	}
}

// In a Burstable pod all services have the same, highest oom_score_adj. The status must then say that the kernel kills the
// largest process first.
func TestInABurstablePodTheKernelTakesTheLargestFirst(t *testing.T) {
	defer func(was func() (float64, int)) { oomLimits = was }(oomLimits)
	oomLimits = func() (float64, int) { return 1 << 30, 15 }
	services := []*supervisor.Service{{Name: "gateway", Kind: supervisor.KindGateway, OOMAdj: 800}, {Name: "cmd", Kind: supervisor.KindCmd, OOMAdj: 700}}
	if got := firstOOMVictim(services, []client.Service{{Name: "gateway", MemoryBytes: 50 << 20}, {Name: "cmd", MemoryBytes: 90 << 20}}); got != "cmd" {
		t.Errorf("it takes %q first", got)
	}
}
