package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/internal/boot"
	"hinit/internal/cmdline"
	"hinit/internal/config"
	"hinit/internal/control/show"
	"hinit/internal/proc"
	"hinit/profiles"
)

func profileVerb() verb {
	return verb{
		name: "profile", doing: "manage profiles", args: "create|delete|rename|list|show [NAME...] [--yes] [--json]",
		summary: "make, remove, rename and list profiles",
		help: `create NAME      make the profile; its gateway is registered and down
delete NAME      stop its gateway and remove its home; asks unless --yes
rename OLD NEW   stop its gateway, rename it, and start it again if it ran
list             all profiles
show NAME        one profile
The agent's own command does the work where it has one (agent.profile_create and so on in hinit.yaml).`,
		run: profile,
	}
}

// manager is the profile verb at work.
type manager struct {
	*terminal
	doing string // for messages
	json  bool   // what is done is told as JSON
	cfg   *config.Config
	agent boot.Agent
	store *profiles.Store
	cl    *client.Client // nil when no init is reachable
}

func profile(t *terminal, c *call) int {
	yes := c.flags.Bool("yes", false, "do not ask before deleting")
	asJSON := c.flags.Bool("json", false, "print JSON: the profile, or a list of all")
	words, code, ok := c.parse(t, 1, 3)
	if !ok {
		return code
	}
	wants := map[string]int{"create": 1, "delete": 1, "rename": 2, "list": 0, "show": 1}
	n, known := wants[words[0]]
	if !known || len(words)-1 != n {
		return t.fail(exitUsage, "cannot manage profiles: expected: hinit profile create NAME | delete NAME | rename OLD NEW | list | show NAME%s",
			cmdline.DidYouMean(words[0], slices.Sorted(maps.Keys(wants))))
	}
	names := make([]string, n)
	for i, w := range words[1:] {
		names[i] = profiles.Normalize(w)
		if err := profiles.ValidName(names[i]); err != nil {
			return t.fail(exitUsage, "cannot %s profile %q: %v", words[0], w, err)
		}
	}
	doing := words[0] + " profiles"
	if n > 0 {
		doing = fmt.Sprintf("%s profile %q", words[0], names[0])
	}
	m, err := newManager(t)
	if err != nil {
		return t.failed(doing, err)
	}
	m.doing, m.json = doing, *asJSON
	if uid := os.Geteuid(); n > 0 && words[0] != "show" && uid != 0 && uint32(uid) != m.agent.User.UID {
		return t.fail(exitNotAllowed, "cannot %s: uid %d may not; root and %s may", doing, uid, m.cfg.Agent.User)
	}
	switch words[0] {
	case "create":
		return m.create(names[0])
	case "delete":
		return m.delete(names[0], *yes)
	case "rename":
		return m.rename(names[0], names[1])
	case "list":
		return m.list("")
	}
	return m.list(names[0])
}

func newManager(t *terminal) (*manager, error) {
	cfg, err := t.config()
	if err != nil {
		return nil, err
	}
	agent, err := boot.LookupAgent(cfg)
	if err != nil {
		return nil, err
	}
	m := &manager{terminal: t, cfg: cfg, agent: agent}
	m.store = profiles.Open(cfg.Home, agent.Actor, cfg.Profiles.Marker)
	cl, err := t.dial()
	switch {
	case err == nil:
		m.cl = cl
	case errors.Is(err, client.ErrNotAllowed):
		return nil, err
	}
	return m, nil
}

// profileMeant is what [didYouMean] says of a profile.
func (m *manager) profileMeant(name string) string {
	all, _, _ := m.store.Discover()
	var names []string
	for _, p := range all {
		names = append(names, p.Name)
	}
	return cmdline.DidYouMean(name, names)
}

// exists tells whether there is such a profile on the volume.
func (m *manager) exists(name string) (profiles.Profile, bool, error) {
	all, _, err := m.store.Discover()
	for _, p := range all {
		if p.Name == name {
			return p, true, nil
		}
	}
	return profiles.Profile{}, false, err
}

func (m *manager) create(name string) int {
	if name == profiles.Default {
		return m.fail(exitFailed, "cannot create profile %q: it always exists", name)
	}
	if _, there, _ := m.exists(name); there {
		return m.fail(exitFailed, "cannot create profile %q: it exists already", name)
	}
	if code := m.change(m.cfg.Agent.ProfileCreate, map[string]string{"profile": name}, func() error {
		_, err := m.store.Create(name)
		return err
	}); code != exitDone {
		return code
	}
	p, there, err := m.exists(name)
	if !there {
		return m.fail(exitFailed, "cannot create profile %q: the agent's command ended well, but there is no such profile now (%v)", name, err)
	}
	if m.json {
		return m.list(name)
	}
	if m.cl == nil {
		fmt.Fprintf(m.out, "created profile %s in %s; no init is reachable, its gateway is registered at the next start of the container\n", name, p.Home)
		return exitDone
	}
	fmt.Fprintf(m.out, "created profile %s in %s; start its gateway with: hinit start %s\n", name, p.Home, name)
	return exitDone
}

func (m *manager) delete(name string, yes bool) int {
	if name == profiles.Default {
		return m.fail(exitFailed, "cannot delete profile %q: it is the root of the volume", name)
	}
	p, there, err := m.exists(name)
	if !there {
		return m.missing(name, err)
	}
	if !yes {
		if ok, err := m.confirm(fmt.Sprintf("Delete profile %s with everything in %s? [y/N] ", name, p.Home)); err != nil {
			return m.fail(exitUsage, "cannot delete profile %q: %v", name, err)
		} else if !ok {
			return m.fail(exitFailed, "profile %s was not deleted", name)
		}
	}
	if _, code := m.stop(name); code != exitDone {
		return code
	}
	m.warnOfSelection()
	was := profileRow{Name: p.Name, Home: p.Home}
	if rows, _, _ := m.rows(name); len(rows) > 0 {
		was = rows[0]
	}
	itself := func() error { return m.store.Delete(name) }
	if code := m.change(m.cfg.Agent.ProfileDelete, map[string]string{"profile": name}, itself); code != exitDone {
		return code
	}
	if m.json {
		was.Gateway, was.Want, was.PID = "", "", 0
		return m.print([]profileRow{was}, true)
	}
	fmt.Fprintf(m.out, "deleted profile %s; its logs stay in %s/%s\n", name, m.cfg.Logs.Dir, name)
	return exitDone
}

func (m *manager) rename(from, to string) int {
	if from == profiles.Default || to == profiles.Default {
		return m.fail(exitFailed, "cannot rename profile %q to %q: the default profile is the root of the volume", from, to)
	}
	if _, there, err := m.exists(from); !there {
		return m.missing(from, err)
	}
	if _, there, _ := m.exists(to); there {
		return m.fail(exitFailed, "cannot rename profile %q to %q: that one exists already", from, to)
	}
	wasUp, code := m.stop(from)
	if code != exitDone {
		return code
	}
	m.warnOfSelection()
	itself := func() error { return m.store.Rename(from, to) }
	if code := m.change(m.cfg.Agent.ProfileRename, map[string]string{"profile": from, "to": to}, itself); code != exitDone {
		return code
	}
	if wasUp {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if _, err := m.cl.Start(ctx, profiles.SlotName(to), client.Wait{Wait: true, Timeout: 30 * time.Second}); err != nil {
			return m.fail(exitFailed, "renamed profile %s to %s, but cannot start its gateway again: %v", from, to, err)
		}
	}
	if m.json {
		return m.list(to)
	}
	fmt.Fprintf(m.out, "renamed profile %s to %s\n", from, to)
	return exitDone
}

// stop ends the gateway of a profile, if there is an init that runs it, and tells whether it was wanted up.
func (m *manager) stop(name string) (wasUp bool, code int) {
	if m.cl == nil {
		return false, exitDone
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	slot := profiles.SlotName(name)
	s, err := m.cl.Service(ctx, slot)
	if errors.Is(err, client.ErrUnknown) {
		return false, exitDone
	}
	if err == nil {
		_, err = m.cl.Stop(ctx, slot, client.Wait{Wait: true, Timeout: m.cfg.Stop.Grace + 5*time.Second})
	}
	if err != nil {
		return false, m.failed("stop "+slot, err)
	}
	return s.Want == "up", exitDone
}

// warnOfSelection tells when the file that selects a profile can't be one: who changes profiles would change it with them.
func (m *manager) warnOfSelection() {
	if _, err := m.store.Active(); err != nil {
		fmt.Fprintln(m.err, "warning:", show.Line(err.Error()))
	}
}

// missing says that there is no such profile, or why that can't be told.
func (m *manager) missing(name string, err error) int {
	if err != nil {
		return m.failed(m.doing, err)
	}
	return m.fail(exitUnknown, "cannot %s: there is no such profile; hinit profile list shows them%s", m.doing, m.profileMeant(name))
}

// change carries out a change by the agent's own command, or by itself where there is none. Then it lets the init look at the volume.
func (m *manager) change(command []string, vars map[string]string, itself func() error) int {
	done, err := m.byAgent(command, vars)
	if err == nil && !done {
		err = itself()
	}
	if err != nil || m.cl == nil {
		return m.failed(m.doing, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return m.failed(m.doing, m.cl.Rescan(ctx))
}

// byAgent runs the agent's own command as the agent's user. done is false when there is none. What the command writes is
// shown only when it fails.
func (m *manager) byAgent(command []string, vars map[string]string) (done bool, err error) {
	argv := m.cfg.Expand(command, vars)
	if len(argv) == 0 || strings.HasPrefix(argv[0], "/") && unix.Access(argv[0], unix.F_OK) != nil {
		return false, nil
	}
	env := map[string]string{"HOME": m.cfg.ExpandString(m.cfg.Agent.Env["HOME"], nil)}
	// It has a session of its own: the agent could type into the terminal of the shell that root has called hinit from.
	spec := proc.Spec{ID: 1, Argv: argv, Env: proc.SetEnv(boot.ContainerEnv(m.cfg.Home), env), Dir: m.cfg.Home, Cred: m.agent.Cred}
	out, errs, x, err := proc.Output(context.Background(), spec, 32<<10) // what is cut off is only for the message
	name := strings.Join(argv, " ")
	switch {
	case err != nil:
		return false, err
	case x.Signal != 0:
		return false, fmt.Errorf("%q was ended by %s", name, show.Signal(x.Signal))
	case x.Code != 0:
		return false, fmt.Errorf("%q has ended with code %d: %s", name, x.Code, strings.Join(strings.Fields(string(out)+" "+string(errs)), " "))
	}
	return true, nil
}

// confirm asks a question that only a person at a terminal can answer.
func (m *manager) confirm(question string) (bool, error) {
	if !proc.IsTerminal(m.in) {
		return false, errors.New("it asks first, and there is no terminal to answer at; add --yes")
	}
	fmt.Fprint(m.err, question)
	answer, err := bufio.NewReader(m.in).ReadString('\n')
	if err != nil {
		return false, nil
	}
	answer = strings.ToLower(strings.TrimSpace(answer))
	return answer == "y" || answer == "yes", nil
}
