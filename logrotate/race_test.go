//go:build race

package logrotate

const raceEnabled = true
