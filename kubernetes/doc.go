// Package kubernetes is the module of what hinit has for clusters: manifests, made from one source. The product imports none of
// it. It owns no goroutine.
package kubernetes

//go:generate go run ./internal/deploy/generate
//go:generate go tool -modfile=tools/go.mod controller-gen object crd paths=./api/... output:crd:dir=deploy/fleet/crds
