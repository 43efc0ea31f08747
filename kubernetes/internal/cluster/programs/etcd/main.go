// Command etcd runs etcd, the store of the cluster in the tests. Its goroutines are etcd's.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
