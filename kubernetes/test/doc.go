// Package test tests the manifests and the image of the product on a real cluster. It contains only tests, whose goroutines end
// with them.
package test
