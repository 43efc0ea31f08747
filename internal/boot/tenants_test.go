package boot

import (
	"os"
	"path/filepath"
	"testing"

	"hinit/internal/config"
	"hinit/internal/testkit"
)

// TestACopiedHomeGetsAUserOfItsOwn: cp -a of a home made two profiles with one user, which could end each other's processes.
func TestACopiedHomeGetsAUserOfItsOwn(t *testing.T) {
	testkit.NeedRoot(t)
	home := t.TempDir()
	o := Options{Home: home, Tenants: Tenants{On: true, All: true, UIDs: config.UIDs{First: 20000, Last: 29999}, Own: map[string]bool{"plain": false}}}
	for name, uid := range map[string]int{"own": 20001, "one": 20002, "copy": 20002, "agents": 10000, "plain": 10000, "former": 20003} {
		dir := filepath.Join(home, ProfilesDir, name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(dir, uid, uid); err != nil {
			t.Fatal(err)
		}
	}
	o.Tenants.Own["former"] = false
	for name, want := range map[string]bool{"own": true, "one": false, "copy": false, "agents": false, "plain": true, "former": false, "missing": true} {
		if got := o.HasRightOwner(name); got != want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
