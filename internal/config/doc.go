// Package config reads hinit.yaml and the environment, and returns the configuration of hinit.
//
// It promises three things. First, every key has a built-in default for the Hermes image, so hinit also works without a file.
// Second, no mistake is ignored: an unknown key, a wrong type, a value out of range, a repeated key and an invalid environment
// variable are errors. [Load] reports all of them together, each with its place. Third, the configuration records where each
// value was set.
//
// Struct tags define the path, the valid values and the environment variable of each key (schema.go). The decoder, `hinit
// config`, the comparison of two configurations and the generated reference all read these tags, so they can't disagree.
//
// The environment wins over the file, and the file over the defaults. An empty environment variable counts as unset.
//
// A [Config] doesn't change once [Load] has returned it, so any goroutine may read it. The package owns no goroutine.
package config
