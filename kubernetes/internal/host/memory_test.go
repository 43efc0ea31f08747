package host

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	hinit "hinit/client"
	"hinit/kubernetes/api/v1alpha1"
)

// TestLargeConfigMapsEndNoHost checks that the contents of ConfigMaps use only limited memory on a
// host. Users may name any number of large ConfigMaps, and the host ran out of memory.
func TestLargeConfigMapsEndNoHost(t *testing.T) {
	var maps []client.Object
	for i := range 64 {
		maps = append(maps, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("big", i), Namespace: "agents"}, BinaryData: map[string][]byte{"x": bytes.Repeat([]byte{byte(i)}, 1000<<10)},
		})
	}
	s := &sources{api: newFakeAPI(maps...), namespace: "agents", cache: map[string]source{}}
	skills := func(from, n int) *v1alpha1.AgentProfileSpec {
		p := &v1alpha1.AgentProfileSpec{}
		for i := range n {
			p.Skills = append(p.Skills, v1alpha1.Skill{Name: fmt.Sprint("s", i), ConfigMap: fmt.Sprint("big", from+i)})
		}
		return p
	}
	if _, err := s.wantedFiles(t.Context(), skills(0, 64)); !errors.Is(err, errTooLarge) || len(s.cache) > 20 {
		t.Errorf("%v, after %d ConfigMaps", err, len(s.cache))
	}
	for i := range 16 {
		for range 2 { // The second round reads from the cache.
			files, err := s.wantedFiles(t.Context(), skills(4*i, 4))
			if err != nil || len(files) != 4 || !bytes.Equal(files["skills/s1/x"][:1], []byte{byte(4*i + 1)}) {
				t.Fatalf("%d files, %v", len(files), err)
			}
		}
	}
	for i := range 40_000 { // Names of ConfigMaps that don't exist.
		_, _ = s.get(t.Context(), "ConfigMap", fmt.Sprint("none", i))
	}
	held := 0
	for _, one := range s.cache {
		held += one.size()
	}
	if held > maxCachedBytes || held != s.cachedBytes {
		t.Errorf("%d ConfigMaps with %d bytes are kept, and %d are counted", len(s.cache), held, s.cachedBytes)
	}
}

// TestGatewaysThatAreGoneFillNoMemory checks that the host forgets the gateways that hinit no longer has. An agent may
// make profiles of any names.
func TestGatewaysThatAreGoneFillNoMemory(t *testing.T) {
	s, _ := newVolume(t, "", "")
	h := newTestHost(t, "me", newFakeAPI(), &fakeGateways{}, s)
	for i := range 100 {
		one := hinit.Service{Kind: hinit.KindGateway, Profile: fmt.Sprint("p", i)}
		h.handleStatus(hinit.StatusChange{IsComplete: true, Services: []hinit.Service{one}})
		if err := h.commandGateway(one.Profile, func() (hinit.Service, error) {
			h.handleStatus(hinit.StatusChange{IsComplete: true, Services: []hinit.Service{one}})
			return hinit.Service{State: hinit.StateUp}, nil
		}); err != nil {
			t.Fatal(err)
		}
		if now, _ := h.service(one.Profile); now == nil || now.State == hinit.StateUp {
			t.Fatalf("the old answer replaces the new report: %+v", now)
		}
	}
	if len(h.reportCounts) > 1 {
		t.Errorf("%d gateways are remembered", len(h.reportCounts))
	}
}
