// Package config reads hinit.yaml and the environment, and returns the configuration of hinit.
//
// The package promises three things. First, every key has a built-in default for the Hermes image, so no file at all is a valid
// configuration. Second, no mistake is ignored. An unknown key, a wrong type, a value out of range, a key given twice and an
// invalid environment variable are errors. [Load] reports all of them together, each with its place. Third, the origin of every
// value is known.
//
// The struct tags define the path, the valid values and the environment variable of each key (schema.go). Decoding, the effective
// listing, the comparison of two configurations and the generated reference all read these tags, so they cannot disagree.
//
// The environment wins over the file and the file wins over the defaults. An empty environment variable counts as unset.
//
// A [Config] does not change after [Load] has returned it. Any goroutine may read it. The package owns no goroutines.
package config
