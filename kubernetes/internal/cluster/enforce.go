package cluster

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// enforcer is a program that has the NetworkPolicies of one node hold, by rules of iptables and sets of ipset.
const enforcer = "kube-router"

// noRange has no service. The enforcer lets everything pass to addresses of services, which a proxy would replace; here they are the server's own.
const noRange = "10.96.255.0/24"

// Enforces says what is missing for Enforce, "" where it works.
func (c *Cluster) Enforces() string {
	for _, tool := range []string{"iptables", "ipset"} {
		if _, err := exec.LookPath(tool); err != nil {
			return tool + " is missing; apt-get install iptables ipset"
		}
	}
	return ""
}

// Enforce has the NetworkPolicies hold for the pods of a node, until stop. All nodes are in one network namespace, so it can be one node only.
func (c *Cluster) Enforce(ctx context.Context, node string) (stop func() error, err error) {
	// Pods of a node are on one bridge, and its frames are to pass iptables too.
	if err := os.WriteFile("/proc/sys/net/bridge/bridge-nf-call-iptables", []byte("1"), 0); err != nil {
		return nil, fmt.Errorf("cannot have iptables see bridges: %w", err)
	}
	p, err := c.spawn(enforcer, enforcer, "--run-router=false", "--run-service-proxy=false", "--run-firewall=true", "--kubeconfig="+c.Config, "--hostname-override="+node,
		"--service-cluster-ip-range="+noRange, "--enable-cni=false", "--iptables-sync-period=10s", "--health-port=20244")
	if err != nil {
		return nil, err
	}
	stop = func() error {
		p.kill()
		for _, words := range []string{"iptables --wait --flush", "iptables --wait --delete-chain", "ipset destroy"} { // nothing else has rules in this table here
			command := strings.Fields(words)
			if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil { //nolint:gosec // the words are above
				return fmt.Errorf("cannot remove the rules of NetworkPolicies: %s: %w: %s", words, err, out)
			}
		}
		return nil
	}
	return stop, c.await(ctx, "the NetworkPolicies hold", p, func() bool {
		return exec.Command("iptables", "-S", "KUBE-ROUTER-FORWARD").Run() == nil
	})
}
