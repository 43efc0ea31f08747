// Package imports turns the configuration of another supervisor into hinit.yaml.
//
// It knows supervisord.conf, process-compose.yaml, compose files, the layers of pebble, and the service directories and source directories of s6.
// [Convert] promises that what it could not take over is in the notes, each with its place: nothing is left out in silence. What it
// writes is for hinit run, and it has been read by package config before it is returned. The package owns no goroutine.
package imports
