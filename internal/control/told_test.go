package control

import (
	"testing"

	"hinit/client"
	"hinit/supervisor"
)

// settingsBackend is a core whose services have one setting.
type settingsBackend struct{ *fakeBackend }

func (settingsBackend) NonDefaultSettings(service string) []client.ConfigEntry {
	return []client.ConfigEntry{{Key: "nice", Value: 3, Origin: service}}
}

// The status text of a service is no problem, and strangers must not see it. Only a client that names the service may see its
// settings.
func TestWhatAServiceSaysIsNoTroubleAndNotForStrangers(t *testing.T) {
	v := newGateway("a", supervisor.Up, func(v *supervisor.Service) { v.Status, v.Ready = "serving 3", true })
	s := serve(t, settingsBackend{newFakeBackend(v)}, readableByAll)
	snap, added := s.snapshotWithExpected(t.Context(), nil)
	for uid, trusted := range map[uint32]bool{0: true, 4711: false} {
		who := peer{uid: uid}
		all, err := s.status(t.Context(), snap, added, nil, who)
		if err != nil {
			t.Fatal(err)
		}
		got := all.Services[0]
		if (got.StatusText == "serving 3") != trusted || got.Problem != "" || len(got.Settings) > 0 {
			t.Errorf("uid %d sees %+v", uid, got)
		}
		one, err := s.status(t.Context(), snap, added, []string{v.Name}, who)
		if err != nil {
			t.Fatal(err)
		}
		if got := one.Services[0].Settings; (len(got) == 1 && got[0].Origin == v.Name) != trusted {
			t.Errorf("uid %d sees the settings %v", uid, got)
		}
	}
}
