package host

import (
	"testing"
	"time"

	"k8s.io/client-go/util/workqueue"

	hinit "hinit/client"
)

// TestAReadyGatewayIsNotShownAsStarting: the answer to an order came after the line that said ready, and hid it for good.
func TestAReadyGatewayIsNotShownAsStarting(t *testing.T) {
	h := &host{services: map[string]hinit.Service{}, reportCounts: map[string]uint64{}, queue: workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]())}
	defer h.queue.ShutDown()
	gateway := hinit.Service{Name: "gateway-coder", Profile: "coder", Kind: hinit.KindGateway, State: hinit.StateUp, Want: hinit.WantUp, Since: time.Now()}
	ready := gateway
	ready.Ready = true
	if err := h.commandGateway("coder", func() (hinit.Service, error) {
		h.handleStatus(hinit.StatusChange{Whole: true, Services: []hinit.Service{ready}})
		return gateway, nil
	}); err != nil {
		t.Fatal(err)
	}
	if s, _ := h.service("coder"); s == nil || !s.Ready {
		t.Errorf("the gateway is %+v", s)
	}
	if err := h.commandGateway("coder", func() (hinit.Service, error) { return gateway, nil }); err != nil {
		t.Fatal(err)
	}
	if s, _ := h.service("coder"); s == nil || s.Ready {
		t.Errorf("an answer without a line was not taken in: %+v", s)
	}
}
