// Package tenants_test lets the agent of one profile attack another profile and PID 1, in each mode of isolation. It prints
// the attacks that succeeded:
//
//	go test ./test/tenants -v
//
// The container has the status page, a task board, sandboxes, and an operator who runs commands for the attacked profile. The
// page docs/reference/attacks.md has the result.
//
// In another test, one profile uses up each resource, and the test prints what the other profiles then lack.
//
// The attacker is this test binary, which runs as the gateway of a profile. It has the source of hinit, and no right that a
// gateway lacks. Every init is PID 1 of a namespace that ends with this process.
package tenants_test
