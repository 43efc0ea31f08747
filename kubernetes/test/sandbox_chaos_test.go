package test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"hinit/kubernetes/internal/cluster"
)

var chaosDuration = flag.Duration("span", 40*time.Second, "how long the chaos of sandboxes lasts")

// worker is a script that runs commands in a sandbox as the agent does. It records the number, exit
// code and output of each command. Its arguments are its name, its sandbox and its task.
const worker = `#!/bin/sh
name=$1 box=$2 dir=/opt/data/chaos; d=/opt/hinit/docker
mkdir -p $dir
# A second worker of the name would write into the same account.
old=$(cat $dir/$name.pid 2>/dev/null)
[ "$old" != $$ ] && tr '\0' ' ' 2>/dev/null < /proc/$old/cmdline | grep -q "worker $name " && exit
echo $$ > $dir/$name.pid
n=$(cat $dir/$name.next 2>/dev/null || echo 0)
make() {
  $d ps -a --filter label=hermes-agent=1 --filter label=hermes-task-id=$name --filter label=hermes-profile=default --format '{{.ID}}\t{{.State}}' --no-trunc > $dir/$name.ps 2>/dev/null
  id=$(cut -f1 $dir/$name.ps | head -1); state=$(cut -f2 $dir/$name.ps | head -1)
  case "$state" in
    running) return ;;
    ?*) $d start $id > /dev/null 2>&1 && return ;;
  esac
  new=$($d run -d --init --name $box --label hermes-agent=1 --label hermes-task-id=$name --label hermes-profile=default -w /root --cap-drop ALL --memory 96m --cpus 1 \
    --tmpfs /tmp:rw,size=32m -v /opt/data/sandboxes/docker/$name/home:/root -v /opt/data/sandboxes/docker/$name/workspace:/workspace hinit-demo sleep infinity 2> $dir/$name.run)
  [ -n "$new" ] && id=$new
}
make
while [ ! -e $dir/stop ]; do
  n=$((n+1)); echo $n > $dir/$name.next
  for try in 1 2; do
    echo "$n begin" >> $dir/$name.log
    out=$($d exec $id sh -c "echo $n >> /workspace/done; sleep 0.$((n%4)); echo ok $n" 2>&1); code=$?
    echo "$n $code $(echo "$out" | tr '\n' ' ')" >> $dir/$name.log
    [ $code = 0 ] && break
    case "$out" in
      *"No such container"*|*"is not running"*) make ;;
      *) sleep 1; make; break ;;
    esac
  done
done
echo over >> $dir/$name.log
`

// commandCounts counts the commands of a worker by their outcome.
type commandCounts struct{ done, lost, notBegun, cut int }

// countCommands compares the answers that the worker received with the effects of its commands. Any
// difference is a fault of hinit.
func (a *agentPod) countCommands(name string) commandCounts {
	a.t.Helper()
	var sum commandCounts
	ran := map[string]int{}
	text, _ := os.ReadFile(filepath.Join(a.volume, "sandboxes/docker", name, "workspace/done")) // An error means that no command ran.
	for n := range strings.FieldsSeq(string(text)) {
		ran[n]++
	}
	text, err := os.ReadFile(filepath.Join(a.volume, "chaos", name+".log"))
	if err != nil {
		a.t.Fatal(err)
	}
	most := map[string]int{} // Largest number of times that a command may have run.
	least := map[string]int{}
	open := ""
	for line := range strings.SplitSeq(strings.TrimSpace(string(text)), "\n") {
		words := strings.SplitN(line, " ", 3)
		n := words[0]
		switch {
		case n == "over":
			if open != "" { // A killed worker may leave nothing for the next worker to do.
				sum.cut++
				most[open]++
			}
		case len(words) < 2:
			a.t.Errorf("%s wrote %q", name, line)
		case words[1] == "begin":
			if open != "" { // The worker was killed.
				sum.cut++
				most[open]++
			}
			open = n
			continue
		case words[1] == "0":
			if strings.TrimSpace(words[2]) != "ok "+n {
				a.t.Errorf("%s: command %s was told %q", name, n, words[2])
			}
			sum.done++
			least[n]++
			most[n]++
		case strings.Contains(line, "had begun"), strings.Contains(line, "may have begun"), strings.Contains(line, "went away while the command ran"):
			sum.lost++
			most[n]++
		case strings.Contains(line, "No such container"), strings.Contains(line, "is not running"), strings.Contains(line, "has not begun"),
			strings.Contains(line, "Cannot connect"), strings.Contains(line, "cannot reach"), strings.Contains(line, "cannot ask"), strings.Contains(line, "Error response from daemon"):
			sum.notBegun++
		default:
			a.t.Errorf("%s: no class has the answer %q", name, line)
		}
		open = ""
	}
	if open != "" {
		sum.cut++
		most[open]++
	}
	for n, times := range ran {
		if times > most[n] || times < least[n] {
			a.t.Errorf("%s: command %s ran %d times; its answers allow %d to %d:\n%s", name, n, times, least[n], most[n], excerptAround(string(text), n))
		}
	}
	for n, times := range least {
		if ran[n] < times {
			a.t.Errorf("%s: command %s was told to have ended well, and did not run", name, n)
		}
	}
	return sum
}

// excerptAround returns a worker's output near one command, for an error message.
func excerptAround(text, n string) string {
	lines := strings.Split(text, "\n")
	first, last := len(lines), 0
	for i, line := range lines {
		if strings.HasPrefix(line, n+" ") {
			first, last = min(first, i), i
		}
	}
	return strings.Join(lines[max(0, min(first, last)-4):min(len(lines), last+5)], "\n")
}

// TestEveryCommandIsAccountedFor checks that the result of every command is known, while pods, programs and the API
// server are killed. It runs once with pods and once with Sandboxes.
func TestEveryCommandIsAccountedFor(t *testing.T) {
	cluster.SkipIfShort(t)
	t.Run("Pod", func(t *testing.T) { withSandboxes(t).chaos(t) })
	t.Run("Sandbox", func(t *testing.T) {
		withServer(t).startController(t, true)
		withSandboxes(t).chaos(t)
	})
}

// workers are the names of the workers and of their sandboxes.
var workers = map[string]string{"one": "hermes-000000c1", "two": "hermes-000000c2"}

func (a *agentPod) startWorkers() {
	for name, box := range workers {
		a.eventually("the worker "+name+" is started", func() string {
			r := a.run("exec", "agents-0", "-c", "agents", "--", "sh", "-c", "setsid sh /opt/data/worker "+name+" "+box+" > /opt/data/"+name+".out 2>&1 &")
			return map[bool]string{false: r.String()}[r.exitCode == 0]
		})
	}
}

func (a *agentPod) chaos(t *testing.T) {
	t.Helper()
	t.Cleanup(func() { a.mustRun("uncordon", "node1") })
	if err := os.WriteFile(a.volume+"/worker", []byte(worker), 0o755); err != nil { //nolint:gosec // the agents run this program
		t.Fatal(err)
	}
	a.startWorkers()
	t.Cleanup(func() {
		for name := range workers {
			if t.Failed() { // settle ran above; a second call would count the commands twice.
				t.Logf("worker %s until then: %+v", name, a.countCommands(name))
			}
		}
	})
	faults, counts := a.faults(), map[string]int{}
	for end, i := time.Now().Add(*chaosDuration), 0; i < len(faults) || time.Now().Before(end); i++ {
		time.Sleep(time.Duration(1500+rand.IntN(4000)) * time.Millisecond)
		f := faults[i%len(faults)]
		if i >= len(faults) {
			f = faults[rand.IntN(len(faults))]
		}
		counts[f.name]++
		f.do()
	}
	if err := os.WriteFile(a.volume+"/chaos/stop", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	a.eventually("the workers have ended", func() string { return matchingCommands("sh\x00/opt/data/worker\x00") })
	for name := range workers {
		sum := a.countCommands(name)
		t.Logf("worker %s: %+v", name, sum)
		if sum.done == 0 {
			t.Errorf("the worker %s has done nothing", name)
		}
	}
	t.Log("faults:", fmt.Sprint(counts))
	a.checkNoLeaks()
}

// matchingCommands returns the command lines that contain a text.
func matchingCommands(part string) string {
	var out []string
	for _, command := range processes() {
		if strings.Contains(command, part) {
			out = append(out, command)
		}
	}
	return strings.Join(out, "\n")
}

// checkNoLeaks checks that the faults have left no objects and no processes.
func (a *agentPod) checkNoLeaks() {
	a.t.Helper()
	kinds := "persistentvolumeclaims"
	for _, kind := range []string{"sandboxes.agents.x-k8s.io", "sandboxclaims", "sandboxwarmpools", "sandboxtemplates"} {
		if a.run("get", kind).exitCode == 0 { // Check Sandboxes only if the cluster has this kind.
			kinds += "," + kind
		}
	}
	lines := func(text string) int { return len(strings.FieldsFunc(text, func(r rune) bool { return r == '\n' })) }
	a.eventually("there is one sandbox for each task, and no command", func() string {
		pods := a.mustRun("get", "pods", "-l", "app.kubernetes.io/managed-by=hinit-sandbox", "-o", "name")
		if objects := a.mustRun("get", kinds, "-o", "name"); lines(pods) > len(workers) || lines(objects) > 1+len(workers) {
			return pods + objects
		}
		if first, served := matchingCommands(gateInit), matchingCommands(inside); lines(first) > lines(pods) || lines(served) > lines(pods) {
			return first + "\n" + served
		}
		return matchingCommands("/workspace/done") + matchingCommands("/opt/hinit/docker\x00")
	})
	a.mustRun("delete", "configmap", "agents-sandboxes")
	a.eventually("all sandboxes are gone", func() string {
		return a.mustRun("get", "pods", "-l", "app.kubernetes.io/managed-by=hinit-sandbox", "-o", "name") + matchingCommands(gateInit) + matchingCommands(inside)
	})
	if objects := a.mustRun("get", kinds, "-o", "name"); objects != "persistentvolumeclaim/agents-data\n" {
		a.t.Error("objects are left:", objects)
	}
}

// fault is a disturbance while the workers run.
type fault struct {
	name string
	do   func()
}

func (a *agentPod) faults() []fault {
	box := func() string { return workers[[]string{"one", "two"}[rand.IntN(2)]] }
	return []fault{
		{"delete a pod", func() { a.run("delete", "pod", objectName(box()), "--wait=false") }},
		{"kill a program inside", func() { killMatching(inside) }},
		{"kill a container", func() { killMatching(gateInit) }},
		{"kill the service", func() { killMatching(serving) }},
		{"drain", func() {
			a.run("drain", "node1", "--pod-selector=hinit.dev/sandbox", "--delete-emptydir-data", "--timeout=40s")
			a.mustRun("uncordon", "node1")
		}},
		{"kill the API server", func() {
			a.KillServer()
			time.Sleep(time.Duration(rand.IntN(4000)) * time.Millisecond)
			if err := a.StartAPIServer(context.Background()); err != nil {
				a.t.Fatal(err)
			}
		}},
		{"stop the API server for a while", func() {
			goOn, err := a.PauseServer()
			if err != nil {
				a.t.Fatal(err)
			}
			time.Sleep(time.Duration(1000+rand.IntN(12000)) * time.Millisecond)
			goOn()
		}},
		{"kill the agents", a.killAgents},
	}
}

func (a *agentPod) killAgents() {
	old := a.pod("agents-0")
	if restarts(old) >= 2 || len(old.Status.InitContainerStatuses) > 0 && old.Status.InitContainerStatuses[0].RestartCount >= 3 {
		a.run("delete", "pod", "agents-0") // A new pod, because the node would delay a restart of this container by minutes.
		a.awaitReady("agents-0", old)
	} else {
		for _, pid := range initPIDs() {
			_ = syscall.Kill(pid, syscall.SIGKILL) // The process may have ended.
		}
		a.eventually("the agents are back", func() string {
			p := a.pod("agents-0")
			return map[bool]string{false: p.Status.String()}[isPodReady(p) && restarts(p) > restarts(old)]
		})
	}
	a.startWorkers()
}
