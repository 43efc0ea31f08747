// Package config reads hinit.yaml and the environment, and returns the configuration of hinit.
//
// It promises three things. First, every key has a built-in default for the Hermes image, so no file at all is a valid
// configuration. Second, no mistake is ignored: an unknown key, a wrong type, a value out of range, a key given twice and an
// invalid environment variable are errors. [Load] reports all of them together, each with its place. Third, the place where each
// value was set is known.
//
// Struct tags define the path, the valid values and the environment variable of each key (schema.go). Decoding, the list of values
// in force, the comparison of two configurations and the generated reference read the same tags, so they can't disagree.
//
// The environment wins over the file, and the file over the defaults. An empty environment variable counts as unset.
//
// A [Config] doesn't change once [Load] has returned it, so any goroutine may read it. The package owns no goroutine.
package config
