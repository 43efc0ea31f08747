// Package imports turns the configuration of another supervisor into hinit.yaml.
//
// It reads supervisord.conf, process-compose.yaml, compose files, the layers of pebble, the units of systemd, and the service
// directories and source directories of s6. Each importer sets keys of hinit.yaml by their paths. The keys are written in the
// order of the table in package config. [Convert] returns a configuration for hinit run, which package config has checked. The
// package owns no goroutine.
package imports
