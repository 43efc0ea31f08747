package bootstatus_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"hinit/client"
	"hinit/internal/container/bootstatus"
	"hinit/supervisor"
)

func TestWarningsAreReportedOnceAndLimited(t *testing.T) {
	s := bootstatus.New()
	if !s.AddWarning("a") || s.AddWarning("a") {
		t.Error("a warning is new once")
	}
	for i := range 1000 {
		s.AddWarning(fmt.Sprint(i))
	}
	if own, _ := s.Warnings(); len(own) != 50 || own[49] != "999" {
		t.Errorf("kept are %q", own)
	}
	s.AddAgentWarning(strings.Repeat("x", 1<<20))
	if _, agents := s.Warnings(); len(agents) != 1 || len(agents[0]) > 2048 {
		t.Errorf("%d bytes of a warning are kept", len(agents[0]))
	}
}

// TestAThousandWarningsOfTheAgentPushOutNoneOfRoots checks that the list of warnings keeps root's warnings, whether
// they come before or after the agent's.
func TestAThousandWarningsOfTheAgentPushOutNoneOfRoots(t *testing.T) {
	s := bootstatus.New()
	s.AddWarning("before")
	for i := range 1000 {
		s.AddAgentWarning(fmt.Sprint(i))
	}
	if !s.AddWarning("after") || !s.AddWarning("999") {
		t.Error("a warning of root's is not new because of the agent's")
	}
	own, agents := s.Warnings()
	if !slices.Equal(own, []string{"before", "after", "999"}) || len(agents) != 50 || agents[49] != "999" {
		t.Errorf("kept are %q and %q", own, agents)
	}
}

func TestStepsStandInTheOrderInWhichTheyBegan(t *testing.T) {
	s := bootstatus.New()
	s.AddSteps(client.BootStep{Name: "home"}, client.BootStep{Name: "logs"})
	s.InsertStep(0, client.BootStep{Name: "control"})
	if got := s.Steps(); len(got) != 3 || got[0].Name != "control" || got[2].Name != "logs" || s.Failed() {
		t.Errorf("got %+v, failed %v", got, s.Failed())
	}
	s.AddSteps(client.BootStep{Name: "hook", Error: "it failed"})
	if !s.Failed() {
		t.Error("a step has failed")
	}
	s.ForgetSteps()
	if len(s.Steps()) > 0 || s.Failed() {
		t.Error("the steps are not forgotten")
	}
	next := bootstatus.New()
	s.AddWarning("w")
	s.AddAgentWarning("a")
	own, agents := s.Warnings()
	next.TakeOver(own, agents, []client.BootStep{{Name: "home"}})
	if own, agents := next.Warnings(); !next.HasEnded() || len(own) != 1 || len(agents) != 1 || len(next.Steps()) != 1 {
		t.Errorf("taken over is %q, %q, %+v", own, agents, next.Steps())
	}
}

// TestARequestForAllServicesWaitsUntilTheProfilesAreRead checks that a request for all services waits until the profiles are
// read. The wait must end with the boot or with the client's timeout if the volume hangs.
func TestARequestForAllServicesWaitsUntilTheProfilesAreRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := bootstatus.New()
		s.SetExpected([]*supervisor.Service{{Name: "web"}})
		free := make(chan struct{})
		s.ExpectLater(func() []*supervisor.Service {
			<-free
			return []*supervisor.Service{{Name: "gateway-coder"}}
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if got := s.ExpectedServices(ctx, true); len(got) != 1 || ctx.Err() == nil {
			t.Errorf("while the volume hangs: %d services, %v", len(got), ctx.Err())
		}
		if got := s.ExpectedServices(t.Context(), false); len(got) != 1 {
			t.Errorf("without waiting: %d services", len(got))
		}
		go func() { time.Sleep(time.Second); close(free) }()
		if got := s.ExpectedServices(t.Context(), true); len(got) != 2 || got[0].Name != "gateway-coder" {
			t.Errorf("afterwards: %+v", got)
		}
		s.End()
		if !s.HasEnded() {
			t.Error("it is not over")
		}
	})
}

func TestTheHookThatRunsIsShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := bootstatus.New()
		if s.HookProgress() != nil {
			t.Error("no hook runs")
		}
		s.SetHookCount(2)
		s.HookBegins("update.sh", 1)
		time.Sleep(3 * time.Second)
		if h := s.HookProgress(); h == nil || *h != (client.BootHook{Name: "update.sh", Number: 1, Total: 2, Seconds: 3}) {
			t.Errorf("got %+v", h)
		}
		if during := s.HookText(); during != " while booting: hook 1 of 2 (update.sh), 3s" {
			t.Errorf("got %q", during)
		}
		s.HooksEnd()
		if s.HookProgress() != nil || s.HookText() != "" {
			t.Error("the hook has ended")
		}
		if s.ProfilesProgress(3) != nil {
			t.Error("the profiles are not read")
		}
		s.SetProfiles(10)
		if b := s.ProfilesProgress(30); *b != (client.BootProfiles{Profiles: 10, Done: 10}) {
			t.Errorf("got %+v", b)
		}
	})
}
