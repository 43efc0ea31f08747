package config

import _ "embed"

// Schema is a JSON schema (draft 2020-12) of hinit.yaml, for editors. It has keys, types and choices. Rules that concern more than
// one key are in [Load] only. internal/gendocs makes it from the tags by which [Load] decodes the file.
//
//go:embed hinit.schema.json
var Schema string
