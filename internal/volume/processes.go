package volume

import (
	"os"
	"strconv"

	"hinit/internal/boot"
	"hinit/internal/fsutil"
	"hinit/internal/proc"
	"hinit/internal/procstat"
	"hinit/internal/procusage"
)

// gatewayProcesses returns the processes of the gateways in list, grouped by service. An orphan has left its parent, group
// and session. It is recognized by its mark, a resource limit that every process of a gateway inherits. A tenant's processes
// are also recognized by their user, because a process can't change its user.
func gatewayProcesses(o Options, list []boot.Gateway) (map[string][]int, error) {
	roots := proc.ServiceRoots{Init: os.Getppid(), Mains: make(map[int]string), Mark: procusage.Marks("/proc")}
	for _, w := range list {
		if w.Main != 0 {
			roots.Mains[w.Main] = w.Service
		}
	}
	all, err := procusage.Read("/proc", nil)
	if err != nil {
		return nil, err
	}
	users, owners, found := gatewaysByUser(o, list), roots.Owners(all), make(map[string][]int)
	for pid := range all {
		service, is := roots.Mains[owners[pid]]
		if len(users) > 0 {
			uid, _ := procstat.StatusOf(strconv.Itoa(pid)).Number("Uid", 10)
			if w, own := users[uint32(uid)]; own {
				service, is = w.Service, true
			}
		}
		if is {
			found[service] = append(found[service], pid)
		}
	}
	return found, nil
}

// gatewaysByUser returns the gateways in list whose profiles are tenants, by the uid of the tenant.
func gatewaysByUser(o Options, list []boot.Gateway) map[uint32]boot.Gateway {
	users := make(map[uint32]boot.Gateway)
	homes, err := fsutil.OpenDir(o.Home+"/"+boot.ProfilesDir, fsutil.Self())
	if err != nil {
		return users
	}
	defer homes.Close()
	for _, w := range list {
		if info, err := homes.Lstat(w.Profile); err == nil && o.Tenants.HasUID(fsutil.UID(info)) {
			users[fsutil.UID(info)] = w
		}
	}
	return users
}
