package dockercli

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"hinit/sandbox"
)

// TestParse checks every docker call that the contract lists.
func TestParse(t *testing.T) {
	const tab = "\t"
	for _, c := range []struct {
		args []string
		want Call
	}{
		{[]string{"version"}, Call{}},
		{[]string{"info", "--format", "{{.Driver}}"}, Call{}},
		{[]string{"image", "inspect", "some:image", "--format", "{{json .Config.Entrypoint}}"}, Call{Words: []string{"some:image"}}},
		{
			[]string{"ps", "-a", "--filter", "label=hermes-agent=1", "--filter", "label=hermes-task-id=t", "--filter", "label=hermes-profile=p", "--format", "{{.ID}}" + tab + "{{.State}}"},
			Call{ShowAll: true, ShowState: true, Labels: map[string]string{"hermes-agent": "1", "hermes-task-id": "t", "hermes-profile": "p"}},
		},
		{
			[]string{"ps", "-a", "--filter", "label=hermes-agent=1", "--filter", "status=exited", `--format={{.ID}}`},
			Call{ShowAll: true, Labels: map[string]string{"hermes-agent": "1"}, Status: []sandbox.State{sandbox.Exited}},
		},
		{[]string{"ps", "-aq", "--format", `{{.ID}}\t{{.State}}`}, Call{ShowAll: true, ShowState: true, Labels: map[string]string{}}},
		{[]string{"start", "abc"}, Call{Words: []string{"abc"}}},
		{[]string{"exec", "abc", "bash", "-c", "ls -l"}, Call{Words: []string{"abc", "bash", "-c", "ls -l"}}},
		{[]string{"exec", "-i", "-e", "A=b", "-eC", "abc", "bash", "-l", "-c", "x"}, Call{Words: []string{"abc", "bash", "-l", "-c", "x"}, Env: []string{"A=b", "C"}, Stdin: true}},
		{[]string{"exec", "-w", "/tmp", "abc", "pwd"}, Call{Words: []string{"abc", "pwd"}, Spec: sandbox.Spec{Dir: "/tmp"}}},
		{[]string{"inspect", "--format", "{{.State.FinishedAt}}", "abc"}, Call{Words: []string{"abc"}}},
		{[]string{"create", "--storage-opt", "size=1m", "hello-world"}, Call{Words: []string{"hello-world"}, Spec: sandbox.Spec{Image: "hello-world", Cmd: []string{}, Storage: map[string]string{"size": "1m"}}}},
		{[]string{"stop", "-t", "10", "abc"}, Call{Words: []string{"abc"}, Grace: 10}},
		{[]string{"stop", "abc"}, Call{Words: []string{"abc"}, Grace: 10}},
		{[]string{"rm", "-f", "abc"}, Call{Words: []string{"abc"}, Force: true}},
		{[]string{"rm", "abc", "def"}, Call{Words: []string{"abc", "def"}}},
		{
			append(strings.Fields("run -d --init --name hermes-0123abcd --label hermes-agent=1 -w /root --cap-drop ALL --cap-add CHOWN --security-opt no-new-privileges "+
				"--pids-limit 256 --tmpfs /tmp:rw,nosuid,size=512m --cpus 1 --memory 5120m -v /h/sandboxes/docker/default/home:/root -e A=1 -e SECRET --network=none"),
				"an/image:tag", "sleep", "infinity"),
			Call{Words: []string{"an/image:tag", "sleep", "infinity"}, Env: []string{"A=1", "SECRET"}, Spec: sandbox.Spec{
				Name: "hermes-0123abcd", Image: "an/image:tag", Cmd: []string{"sleep", "infinity"}, Labels: map[string]string{"hermes-agent": "1"},
				Init: true, Dir: "/root", CapDrop: []string{"ALL"}, CapAdd: []string{"CHOWN"}, SecurityOpt: []string{"no-new-privileges"}, PidsLimit: 256,
				CPUs: 1, Memory: 5120 << 20, Network: "none",
				Mounts: []sandbox.Mount{
					{Type: "tmpfs", Target: "/tmp", Options: "rw,nosuid,size=512m"},
					{Type: "bind", Source: "/h/sandboxes/docker/default/home", Target: "/root", CreateHostParent: true},
				},
			}},
		},
	} {
		got, err := Parse(c.args, nil)
		if err != nil {
			t.Errorf("%q: %v", c.args, err)
			continue
		}
		if got.command.name != strings.TrimSpace(c.args[0]+map[string]string{"image": " inspect"}[c.args[0]]) {
			t.Errorf("%q is docker %s", c.args, got.command.name)
		}
		got.command, got.rawFlags = command{}, rawFlags{}
		if !reflect.DeepEqual(*got, c.want) {
			t.Errorf("%q:\n got %+v\nwant %+v", c.args, *got, c.want)
		}
	}
}

// TestParseLeavesTheRest checks that docker calls that the agent never makes go to the real docker
// command.
func TestParseLeavesTheRest(t *testing.T) {
	for _, line := range []string{
		"", "-H tcp://x ps", "pull x", "build .", "image ls", "images", "network create x", "container prune", "info", "ps", "ps --format json", "ps -s --format {{.ID}}",
		"ps --filter name=x --format {{.ID}}", "run image", "run --rm -d image", "run -it image", "run -d --gpu-less image", "run -d --platform linux/arm64 image",
		"exec -t c sh", "exec -u 0 c sh", "exec -d c sh", "exec --env-file f c sh", "inspect c", "inspect -f {{.Id}} c", "inspect -s --format {{.State.FinishedAt}} c",
		"start -a c", "stop -s KILL c", "rm -l c", "image inspect a b --format {{json_.Config.Entrypoint}}", "run -d -v a/b:/c image",
	} {
		_, err := Parse(strings.Fields(line), nil)
		if other := (*UnhandledError)(nil); !errors.As(err, &other) {
			t.Errorf("docker %s: %v is no UnhandledError", line, err)
		}
	}
}

func TestParseUsage(t *testing.T) {
	for line, want := range map[string]string{
		"exec": "docker: 'docker exec' requires at least 2 arguments", "exec c": "docker: 'docker exec' requires at least 2 arguments",
		"run -d": "docker: 'docker run' requires at least 1 argument", "rm -f": "docker: 'docker rm' requires at least 1 argument",
		"run -d --name": "flag needs an argument: --name", "stop -t x c": `invalid argument "x" for "-t, --timeout" flag: strconv.ParseInt: parsing "x": invalid syntax`,
	} {
		_, err := Parse(strings.Fields(line), nil)
		if usage := (*UsageError)(nil); !errors.As(err, &usage) || err.Error() != want {
			t.Errorf("docker %s: %v", line, err)
		}
	}
}

// TestParseRefuses checks that flags that would let a sandbox escape are refused, whichever program
// would handle the call.
func TestParseRefuses(t *testing.T) {
	for line, allow := range map[string]string{
		"run -d --privileged image": sandbox.AllowPrivileged, "run --privileged=true image": sandbox.AllowPrivileged, "exec --privileged c sh": sandbox.AllowPrivileged,
		"run --device /dev/sda image": sandbox.AllowPrivileged, "run -d --gpus all image": sandbox.AllowPrivileged, "run -d --device-cgroup-rule=a image": sandbox.AllowPrivileged,
		"run -d --cap-add SYS_ADMIN image": sandbox.AllowPrivileged, "run -d --cap-add=ALL image": sandbox.AllowPrivileged, "run -d --cap-add cap_sys_ptrace image": sandbox.AllowPrivileged,
		"run -d --security-opt seccomp=unconfined image": sandbox.AllowPrivileged, "run -d --security-opt apparmor:unconfined image": sandbox.AllowPrivileged,
		"run -d --security-opt no-new-privileges=false image": sandbox.AllowPrivileged, "run -d --security-opt no-new-privileges:false image": sandbox.AllowPrivileged,
		"run -d --pid=host image": sandbox.AllowHost, "run -d --pid container:x image": sandbox.AllowHost, "run --ipc host image": sandbox.AllowHost, "create --uts=host image": sandbox.AllowHost,
		"run -d --userns=host image": sandbox.AllowHost, "run -d --cgroupns host image": sandbox.AllowHost, "run -d --network host image": sandbox.AllowHost, "run -d --net=container:x image": sandbox.AllowHost,
		"run -d --cgroup-parent=/ image": sandbox.AllowHost, "run -d --volumes-from x image": sandbox.AllowHost, "run -d --oom-score-adj -1000 image": sandbox.AllowHost,
		"run -d -v /var/run/docker.sock:/s image": sandbox.AllowSocket, "run -d -v /run:/r image": sandbox.AllowSocket, "run -d -v /:/host image": sandbox.AllowSocket, "run -d -v /var/../:/h image": sandbox.AllowSocket,
		"run -d --mount type=bind,source=/var/run,target=/r image": sandbox.AllowSocket, "run -d --use-api-socket image": sandbox.AllowSocket,
		"run -it --mount type=bind,bind-propagation=rshared,source=/,target=/h image": sandbox.AllowSocket, "run -it -v /:/h:rshared image": sandbox.AllowSocket,
	} {
		args := strings.Fields(line)
		_, err := Parse(args, nil)
		if refused := (*RefusedError)(nil); !errors.As(err, &refused) || refused.Allow != allow || !strings.Contains(err.Error(), "HINIT_SANDBOX_ALLOW="+allow) {
			t.Errorf("docker %s: %v", line, err)
		}
		_, err = Parse(args, []string{allow})
		if refused := (*RefusedError)(nil); errors.As(err, &refused) {
			t.Errorf("docker %s with %s allowed: %v", line, allow, err)
		}
	}
	if _, err := Parse(strings.Fields("run -d --privileged=false --security-opt no-new-privileges --cap-add=cap_chown image"), nil); err != nil {
		t.Error(err)
	}
}
