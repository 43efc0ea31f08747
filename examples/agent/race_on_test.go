//go:build race

package main

// raceFlags returns the flags with which the agent under test is built: with the race detector, like these tests.
func raceFlags() []string { return []string{"-race"} }
