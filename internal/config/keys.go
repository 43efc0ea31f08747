package config

import _ "embed"

// Schema is a JSON schema (draft 2020-12) of hinit.yaml, for editors. It defines keys, types and choices. Only [Load] checks the
// rules that concern more than one key. internal/gendocs generates the schema from the struct tags that [Load] uses to decode the
// file.
//
//go:embed hinit.schema.json
var Schema string
