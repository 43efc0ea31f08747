// Package imports turns the configuration of another supervisor into hinit.yaml.
//
// It knows supervisord.conf, process-compose.yaml, compose files, the layers of pebble, the units of systemd, and the service directories and
// source directories of s6. Each importer sets keys of hinit.yaml by their paths. The values are written in the order of package config's table. [Convert] promises that every part that it could not take over is in the notes, with its place. The result
// is for hinit run, and package config has read it before it is returned. The package owns no goroutine.
package imports
