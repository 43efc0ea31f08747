//go:build !faults

package faultinject

// Enabled says whether this binary can simulate faults.
const Enabled = false

// Before returns an error to use in place of the call, nil to make the call.
func Before(Call, string) error { return nil }

// After must be called after a call that did not fail.
func After(Call, string) {}

// Room limits a write of n bytes: it returns how many of them the caller may write.
func Room(_ Call, _ string, n int) int { return n }
