package cluster

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// enforcer is the program that enforces NetworkPolicies on one node, with iptables and ipset.
const enforcer = "kube-router"

// unusedServiceRange is an address range without services, which the enforcer gets as its service range. The enforcer allows all traffic
// to its service range, because a proxy normally rewrites these addresses. This cluster has no proxy: the API server itself
// has the service address, and the enforcer must filter traffic to it.
const unusedServiceRange = "10.96.255.0/24"

// NoEnforcerReason returns the reason why [Cluster.StartEnforcer] can't work on this machine, or "" if it can.
func (c *Cluster) NoEnforcerReason() string {
	for _, tool := range []string{"iptables", "ipset"} {
		if _, err := exec.LookPath(tool); err != nil {
			return tool + " is missing; apt-get install iptables ipset"
		}
	}
	if !fileExists(filepath.Join(c.Bin, enforcer)) {
		return enforcer + " was not built; make test-kubernetes builds it"
	}
	return ""
}

// StartEnforcer starts the program that enforces NetworkPolicies for the pods on a node, and waits until its rules are in place. stop
// kills the program and removes its rules. All nodes share one network namespace, so only one node can have an enforcer.
func (c *Cluster) StartEnforcer(ctx context.Context, node string) (stop func() error, err error) {
	// Let iptables see the traffic between the pods of a node, which share one bridge.
	if err := os.WriteFile("/proc/sys/net/bridge/bridge-nf-call-iptables", []byte("1"), 0); err != nil {
		return nil, fmt.Errorf("cannot have iptables see bridges: %w", err)
	}
	p, err := c.spawn(enforcer, enforcer, "--run-router=false", "--run-service-proxy=false", "--run-firewall=true", "--kubeconfig="+c.Config, "--hostname-override="+node,
		"--service-cluster-ip-range="+unusedServiceRange, "--enable-cni=false", "--iptables-sync-period=10s", "--health-port=20244")
	if err != nil {
		return nil, err
	}
	stop = func() error {
		p.kill()
		// These commands remove all rules, because only the enforcer has rules here.
		for _, words := range []string{"iptables --wait --flush", "iptables --wait --delete-chain", "ipset destroy"} {
			command := strings.Fields(words)
			if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil { //nolint:gosec // the commands are constants
				return fmt.Errorf("cannot remove the rules of NetworkPolicies: %s: %w: %s", words, err, out)
			}
		}
		return nil
	}
	return stop, c.waitFor(ctx, "the NetworkPolicies hold", p, func() bool {
		return exec.Command("iptables", "-S", "KUBE-ROUTER-FORWARD").Run() == nil
	})
}
