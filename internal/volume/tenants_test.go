package volume

import (
	"fmt"
	"maps"
	"testing"

	"hinit/internal/boot"
	"hinit/internal/config"
)

func TestAProfileKeepsItsUserAndNoTwoHaveOne(t *testing.T) {
	none := func(uint32) bool { return false }
	tenants := boot.Tenants{On: true, UIDs: config.UIDs{First: 20000, Last: 20010}, All: true, Own: map[string]bool{"plain": false}}
	first := assignUIDs(tenants, map[string]uint32{"a": 10000, "b": 10000, "plain": 10000}, "", none)
	if len(first) != 2 || first["a"] == first["b"] || !tenants.HasUID(first["a"]) || !tenants.HasUID(first["b"]) {
		t.Fatalf("%v", first)
	}
	renamed := assignUIDs(tenants, map[string]uint32{"z": first["a"], "b": first["b"], "a": 10000}, "", none)
	if renamed["z"] != first["a"] || renamed["b"] != first["b"] || renamed["a"] == first["a"] {
		t.Errorf("after a rename: %v, before %v", renamed, first)
	}
	if again := assignUIDs(tenants, map[string]uint32{"b": first["b"], "a": 10000}, "", none); !maps.Equal(again, first) {
		t.Errorf("a profile that came back has %v, had %v", again, first)
	}
	copied := assignUIDs(tenants, map[string]uint32{"a": first["a"], "b": first["a"]}, "", none)
	if copied["a"] != first["a"] || copied["b"] == first["a"] {
		t.Errorf("a copied home: %v", copied)
	}
	for _, starting := range []string{"", "a", "b"} {
		copied = assignUIDs(tenants, map[string]uint32{"a": first["b"], "b": first["b"]}, starting, none)
		if copied["b"] != first["b"] || copied["a"] == first["b"] || !tenants.HasUID(copied["a"]) {
			t.Errorf("the original lost its user to a copy while %q started: %v", starting, copied)
		}
	}
	other := tenants.UIDs.First + 1
	for other == first["a"] || other == first["b"] {
		other++
	}
	if copied = assignUIDs(tenants, map[string]uint32{"a": other, "b": other}, "a", none); copied["b"] != other || copied["a"] == other {
		t.Errorf("a copy that starts has the user of a gateway that may run: %v", copied)
	}
	taken := assignUIDs(tenants, map[string]uint32{"a": 10000}, "", func(uid uint32) bool { return uid == first["a"] })
	if taken["a"] == first["a"] || !tenants.HasUID(taken["a"]) {
		t.Errorf("a user of /etc/passwd is a profile's: %v", taken)
	}
	if outside := assignUIDs(tenants, map[string]uint32{"a": 20000, "b": 30000}, "", none); !tenants.HasUID(outside["a"]) || !tenants.HasUID(outside["b"]) {
		t.Errorf("homes of the group's uid and of another range: %v", outside)
	}
}

func TestThereAreNoMoreTenantsThanUsers(t *testing.T) {
	tenants := boot.Tenants{UIDs: config.UIDs{First: 20000, Last: 21000}, On: true, All: true}
	homes := make(map[string]uint32)
	for i := range 1500 {
		homes[fmt.Sprintf("p%d", i)] = 10000
	}
	got := assignUIDs(tenants, homes, "", func(uint32) bool { return false })
	users := make(map[uint32]bool)
	for _, uid := range got {
		users[uid] = true
	}
	if len(got) != 1000 || len(users) != 1000 || users[20000] {
		t.Errorf("%d profiles have %d users", len(got), len(users))
	}
	if zero := (boot.Tenants{}); len(assignUIDs(zero, homes, "", nil)) != 0 || zero.HasUID(20001) {
		t.Error("no tenants are some")
	}
}
