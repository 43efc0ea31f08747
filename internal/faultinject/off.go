//go:build !faults

package faultinject

// Enabled reports whether this binary can simulate faults.
const Enabled = false

// BeforeCall returns nil: without the build tag, calls are not made to fail.
func BeforeCall(Call, string) error { return nil }

// After does nothing in this build.
func After(Call, string) {}

// AllowedBytes returns n: in this build, writes are not shortened.
func AllowedBytes(_ Call, _ string, n int) int { return n }
