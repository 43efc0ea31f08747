// Package tenants_test lets the agent of one profile attack another profile and PID 1, in each mode of isolation, and prints what it could
// do:
//
//	go test ./test/tenants -v
//
// The container has the status page, a task board, sandboxes, and an operator with commands for the attacked profile. The page
// docs/reference/attacks.md has the result.
//
// Another test has one profile take all of each resource, and prints what the others lack then.
//
// The attacker is this test binary as the gateway of a profile. It has the source of hinit, and no right that a gateway lacks. Every init is
// PID 1 of a namespace that dies with this process.
package tenants_test
