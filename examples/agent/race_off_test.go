//go:build !race

package main

// raceFlags builds the agent under test the way the tests themselves are built.
func raceFlags() []string { return nil }
