// Package kubernetes is the root of hinit's Go module for Kubernetes. The module has the programs
// of a cluster, and manifests that are generated from one source. It is a separate module so that
// hinit does not depend on the libraries of Kubernetes. The package owns no goroutine.
package kubernetes

//go:generate go run ./internal/deploy/generate
//go:generate go tool -modfile=tools/go.mod controller-gen object crd paths=./api/... output:crd:dir=deploy/fleet/crds
