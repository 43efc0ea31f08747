//go:build !faults

package faultinject

// Enabled reports whether this binary can simulate faults.
const Enabled = false

// BeforeCall returns nil, because calls fail only in a binary with the build tag faults.
func BeforeCall(Call, string) error { return nil }

// AfterCall does nothing in this build.
func AfterCall(Call, string) {}

// AllowedBytes returns n, because writes are shortened only in a binary with the build tag faults.
func AllowedBytes(_ Call, _ string, n int) int { return n }
