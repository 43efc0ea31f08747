// Package kubernetes is the root of hinit's module for Kubernetes clusters. It contains programs, and manifests that are
// generated from one source. hinit itself imports nothing from this module. The package owns no goroutine.
package kubernetes

//go:generate go run ./internal/deploy/generate
//go:generate go tool -modfile=tools/go.mod controller-gen object crd paths=./api/... output:crd:dir=deploy/fleet/crds
