package sandbox

import (
	"reflect"
	"strings"
	"testing"
)

func TestApplyFlags(t *testing.T) {
	t.Setenv("GIVEN", "by the process")
	for _, c := range []struct {
		args string
		want Spec
	}{
		{"--name x --init --user 1:2 -w /root image", Spec{Name: "x", Init: true, User: "1:2", Dir: "/root"}},
		{"--init=false image", Spec{}},
		{"--cap-drop ALL --cap-add CHOWN --cap-add=FOWNER image", Spec{CapDrop: []string{"ALL"}, CapAdd: []string{"CHOWN", "FOWNER"}}},
		{"-eA=1 -e GIVEN -e MISSING image", Spec{Env: []string{"A=1", "GIVEN=by the process"}}},
		{"--label a=b=c -l d image", Spec{Labels: map[string]string{"a": "b=c", "d": ""}}},
		{"-m 512m --shm-size=1g --cpus 0.5 --pids-limit 256 image", Spec{Memory: 512 << 20, ShmSize: 1 << 30, CPUs: 0.5, PidsLimit: 256}},
		{"--memory 10485760b image", Spec{Memory: 10 << 20}},
		{"-v /a:/b:ro --volume=name:/c -v /anonymous image", Spec{Mounts: []Mount{
			{Type: "bind", Source: "/a", Target: "/b", ReadOnly: true, CreateHostParent: true},
			{Type: "volume", Source: "name", Target: "/c"},
			{Type: "volume", Target: "/anonymous"},
		}}},
		{"--mount type=bind,src=/a,dst=/b,readonly image", Spec{Mounts: []Mount{{Type: "bind", Source: "/a", Target: "/b", ReadOnly: true}}}},
		{"--tmpfs /tmp:rw,size=512m --tmpfs /run image", Spec{Mounts: []Mount{
			{Type: "tmpfs", Target: "/tmp", Options: "rw,size=512m"}, {Type: "tmpfs", Target: "/run"},
		}}},
		{"--storage-opt size=1m --ulimit nofile=10:20 image", Spec{Storage: map[string]string{"size": "1m"}, Ulimits: map[string]string{"nofile": "10:20"}}},
		{"--network=none --runtime runsc --restart no --privileged image", Spec{Network: "none", Runtime: "runsc", Restart: "no", Privileged: true}},
		{"--pid host --ipc=host --uts host --userns host --cgroupns host image", Spec{PIDMode: "host", IPCMode: "host", UTSMode: "host", UserNS: "host", CgroupNS: "host"}},
		{"--device /dev/kvm --group-add 1 --dns 1.1.1.1 --add-host a:1.2.3.4 -p 80:80 image", Spec{
			Devices: []string{"/dev/kvm"}, Groups: []string{"1"}, DNS: []string{"1.1.1.1"}, Hosts: []string{"a:1.2.3.4"}, Ports: []string{"80:80"},
		}},
		{"--entrypoint sh --hostname h --read-only --security-opt no-new-privileges image", Spec{
			Entrypoint: []string{"sh"}, Hostname: "h", ReadOnly: true, SecurityOpt: []string{"no-new-privileges"},
		}},
	} {
		got, want := Spec{}, c.want
		rest, err := got.ApplyFlags(append(strings.Fields(c.args), "--flag", "of the command"))
		if err != nil {
			t.Errorf("%s: %v", c.args, err)
			continue
		}
		if !reflect.DeepEqual(rest, []string{"image", "--flag", "of the command"}) {
			t.Errorf("%s: the rest is %q", c.args, rest)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s:\n got %+v\nwant %+v", c.args, got, want)
		}
	}
}

func TestApplyFlagsRefuses(t *testing.T) {
	for _, args := range []string{
		"--volumes-from x", "--env-file /etc/shadow", "--gpus all", "--cgroup-parent /", "--device-cgroup-rule a", "-X", "--name",
		"--memory lots", "--memory=-1", "--cpus many", "--pids-limit x", "--init=maybe", "-v /a:b", "-v a/b:/c", "-v /a:/b:/c:/d",
		"-v /a:/b:rshared", "-v :/b", "--mount type=npipe,dst=/a", "--mount type=bind,src=a,dst=/b", "--mount dst=b", "--mount bind-propagation=shared,dst=/a",
		"--tmpfs tmp", "--label =x", "--rm", "--attach stdin",
	} {
		spec := Spec{Name: "before"}
		_, err := spec.ApplyFlags(append([]string{"--name=after", "--label", "a=c"}, strings.Fields(args)...))
		if err == nil || !strings.HasPrefix(err.Error(), "cannot use ") {
			t.Errorf("%s: error %v", args, err)
		}
	}
}
