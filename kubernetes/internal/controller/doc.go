// Package controller decides for the pools of a cluster which host has which profile, and keeps their StatefulSets.
//
// What it decides is in package placement; here is what it sees and how it carries that out. Each write is a compare-and-swap of the version that
// was seen. It never starts or stops a gateway. [Run] owns its goroutines, which are those of controller-runtime, and returns when all have ended.
package controller
