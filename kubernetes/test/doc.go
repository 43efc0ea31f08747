// Package test tries the manifests and the image of the product on a real cluster. It has tests only. Its goroutines end with
// their tests.
package test
