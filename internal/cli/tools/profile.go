package tools

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/client/dial"
	"hinit/internal/boot"
	"hinit/internal/cli"
	"hinit/internal/cmdline"
	"hinit/internal/config"
	"hinit/internal/control/show"
	"hinit/internal/fsutil"
	"hinit/internal/proc"
	"hinit/internal/volume"
	"hinit/profiles"
	"hinit/profiles/manage"
)

var profileVerb = cli.Verb{
	Name: "profile", Action: "manage profiles", JSONHelp: "print JSON: the profile, or a list of all", Args: "create|delete|rename|list|show|export|import|clone [NAME...] [--yes] [--json]",
	Summary: "make, remove, rename, move and list profiles",
	Run:     runProfileVerb,
}

// profileManager carries out a subcommand of hinit profile.
type profileManager struct {
	*cli.Terminal
	action     string // the action in errors, after "cannot"
	printsJSON bool   // print results as JSON
	cfg        *config.Config
	agent      boot.Agent
	store      *profiles.Store
	client     *dial.Client // connection to the init; nil if no init answers
}

func runProfileVerb(t *cli.Terminal, c *cli.Call) int {
	if len(c.Args) > 0 && archiveVerbs[c.Args[0]].Args != "" {
		return runArchiveVerb(t, c.Args[0], c.Args[1:])
	}
	yes := c.Flags.Bool("yes", false, "do not ask before deleting")
	uid := c.Flags.Int("uid", 0, "delete the profile only if its home belongs to this `UID`")
	words, code, ok := c.Parse(t, 1, 3)
	if !ok {
		return code
	}
	wants := map[string]int{"create": 1, "delete": 1, "rename": 2, "list": 0, "show": 1}
	n, known := wants[words[0]]
	if !known || len(words)-1 != n {
		return t.Fail(cmdline.ExitUsage, "cannot manage profiles: expected: hinit profile create NAME | delete NAME | rename OLD NEW | list | show NAME | export | import | clone%s",
			cmdline.DidYouMean(words[0], slices.Concat(slices.Sorted(maps.Keys(wants)), slices.Sorted(maps.Keys(archiveVerbs)))))
	}
	names := words[1:]
	changes := n > 0 && words[0] != "show"
	m, code := newProfileManager(t, words[0], names, changes)
	if code != cmdline.ExitDone {
		return code
	}
	if changes && slices.Contains(names, profiles.Default) {
		return t.Fail(cmdline.ExitFailed, "cannot %s: the profile default is the root of the volume, and stays as it is", m.action)
	}
	m.printsJSON = c.JSON
	switch words[0] {
	case "create":
		return m.create(names[0])
	case "delete":
		return m.delete(names[0], *yes, *uid)
	case "rename":
		return m.rename(names[0], names[1])
	case "show":
		return m.list(names[0])
	}
	return m.list("")
}

// newProfileManager checks the names of profiles, and returns a manager for the subcommand verb. If changes is true, it refuses
// users other than root and the agent's user.
func newProfileManager(t *cli.Terminal, verb string, names []string, changes bool) (m *profileManager, code int) {
	doing := verb + " profiles"
	for i, name := range names {
		names[i] = profiles.Normalize(name)
		if err := manage.ValidName(names[i]); err != nil {
			return nil, t.Fail(cmdline.ExitUsage, "cannot %s profile %q: %v", verb, name, err)
		}
		doing = fmt.Sprintf("%s profile %q", verb, names[0])
	}
	cfg, agent, err := loadAgent(t)
	if err != nil {
		return nil, t.ReportError(doing, err)
	}
	m = &profileManager{Terminal: t, action: doing, cfg: cfg, agent: agent}
	m.store = profiles.Open(cfg.Home, agent.WithTenants(cfg).HomesActor(cfg.Home), cfg.Profiles.Marker)
	if m.client, err = t.Dial(); errors.Is(err, client.ErrNotAllowed) {
		return nil, t.ReportError(doing, err)
	}
	if uid := os.Geteuid(); changes && uid != 0 && uint32(uid) != agent.User.UID {
		return nil, t.Fail(cmdline.ExitNotAllowed, "cannot %s: uid %d may not; root and %s may", doing, uid, cfg.Agent.User)
	}
	return m, cmdline.ExitDone
}

// lookUpProfile looks for a profile on the volume.
func (m *profileManager) lookUpProfile(name string) (profiles.Profile, bool, error) {
	all, _, err := m.store.Discover()
	i := slices.IndexFunc(all, func(p profiles.Profile) bool { return p.Name == name })
	if i < 0 {
		return profiles.Profile{}, false, err
	}
	return all[i], true, nil
}

func (m *profileManager) create(name string) int {
	if _, there, _ := m.lookUpProfile(name); there {
		return m.Fail(cmdline.ExitFailed, "cannot create profile %q: it exists already", name)
	}
	if code := m.changeProfiles(m.cfg.Agent.ProfileCreateCommand, map[string]string{"profile": name}, func() error { return manage.Create(m.store, name) }); code != cmdline.ExitDone {
		return code
	}
	p, there, err := m.lookUpProfile(name)
	if !there {
		return m.Fail(cmdline.ExitFailed, "cannot create profile %q: the agent's command ended well, but there is no such profile now (%v)", name, err)
	}
	if m.printsJSON {
		return m.list(name)
	}
	next := "start its gateway with: hinit start " + name
	if m.client == nil {
		next = "no init is reachable, its gateway is registered at the next start of the container"
	}
	fmt.Fprintf(m.Out, "created profile %s in %s; %s\n", name, p.Home, next)
	return cmdline.ExitDone
}

func (m *profileManager) delete(name string, yes bool, uid int) int {
	p, there, err := m.lookUpProfile(name)
	if exists, _ := m.store.Exists(name); exists && !there && err == nil {
		// A gateway that is started during a deletion can leave a home without the marker. No other command removes such a home. If
		// the caller can't look into the home, the marker may exist.
		p, err = m.store.Profile(name)
		there = os.Geteuid() == 0 || unix.Access(p.Home, unix.X_OK) == nil
	}
	if !there {
		return m.printMissing(name, err)
	}
	home, owner, err := m.openHome(name, uid)
	if err != nil {
		return m.printMissing(name, err)
	}
	defer home.Close()
	if !yes {
		if ok, err := m.confirm(fmt.Sprintf("Delete profile %s with everything in %s? [y/N] ", name, p.Home)); err != nil {
			return m.Fail(cmdline.ExitUsage, "cannot delete profile %q: %v", name, err)
		} else if !ok {
			return m.Fail(cmdline.ExitFailed, "profile %s was not deleted", name)
		}
	}
	if _, code := m.stop(name); code != cmdline.ExitDone {
		return code
	}
	m.warnIfActiveInvalid()
	was := profileRow{Name: p.Name, Home: p.Home}
	if rows, _, _ := m.profileRows(name); len(rows) > 0 {
		was = rows[0]
	}
	if err := cmp.Or(m.removeTemporary(p), m.giveDirsToOwner(home, owner)); err != nil {
		return m.printMissing(name, err)
	}
	if m.isTenant(owner) {
		// The agent's user gets the home only after the removal of its files, so that it can't read them. The marker and the
		// record of the name stay, so that the user can repeat the command.
		err := m.clearHome(home, owner, m.store.Marker(), boot.ProfileNameFile)
		if err == nil {
			_, _, err = home.Chown("", fsutil.Owner{UID: m.agent.User.UID, GID: m.agent.User.GID})
		}
		if err != nil {
			return m.ReportError(m.action, err)
		}
	}
	if code := m.changeProfiles(m.cfg.Agent.ProfileDeleteCommand, map[string]string{"profile": name}, func() error { return manage.Delete(m.store, name) }); code != cmdline.ExitDone {
		return code
	}
	if m.printsJSON {
		was.Gateway, was.DesiredState, was.PID = "", "", 0
		return m.ReportError(m.action, cmdline.WriteJSON(m.Out, was, "  "))
	}
	fmt.Fprintf(m.Out, "deleted profile %s; its logs stay in %s/%s\n", name, m.cfg.Logs.Dir, name)
	return cmdline.ExitDone
}

func (m *profileManager) rename(from, to string) int {
	p, there, err := m.lookUpProfile(from)
	if !there {
		return m.printMissing(from, err)
	}
	if _, there, _ := m.lookUpProfile(to); there {
		return m.Fail(cmdline.ExitFailed, "cannot rename profile %q to %q: that one exists already", from, to)
	}
	wasUp, code := m.stop(from)
	if code != cmdline.ExitDone {
		return code
	}
	m.warnIfActiveInvalid()
	home, owner, openErr := m.openHome(from, 0)
	name := to // the name that the profile has at the end
	itself := func() error { return manage.Rename(m.store, from, to) }
	if err := m.removeTemporary(p); err != nil {
		code, name = m.printMissing(from, err), from
	} else if code = m.changeProfiles(m.cfg.Agent.ProfileRenameCommand, map[string]string{"profile": from, "to": to}, itself); code != cmdline.ExitDone {
		name = from
	} else if openErr == nil && m.isTenant(owner) {
		_ = volume.RecordName(home, "", to, owner) // without the record, later commands ask for --uid
	}
	if wasUp {
		if _, err := m.client.Start(context.Background(), profiles.SlotName(name), client.WaitOptions{Wait: true, Timeout: 30 * time.Second}); err != nil {
			return m.Fail(cmdline.ExitFailed, "the profile is called %s now, but cannot start its gateway again: %v", name, err)
		}
	}
	if code != cmdline.ExitDone {
		return code
	}
	if m.printsJSON {
		return m.list(to)
	}
	fmt.Fprintf(m.Out, "renamed profile %s to %s\n", from, to)
	return cmdline.ExitDone
}

func (m *profileManager) warnIfActiveInvalid() {
	if _, err := m.store.Active(); err != nil {
		fmt.Fprintln(m.Err, "warning:", show.EscapeLine(err.Error()))
	}
}

// printMissing prints that a profile doesn't exist. If there may be another reason for the error err, it prints err instead. A
// concurrent command may have deleted the profile.
func (m *profileManager) printMissing(name string, err error) int {
	all, _, unread := m.store.Discover()
	var names []string
	for _, p := range all {
		names = append(names, p.Name)
	}
	if err != nil && (!errors.Is(err, fs.ErrNotExist) || unread != nil || slices.Contains(names, name)) {
		return m.ReportError(m.action, err)
	}
	if p, err := m.store.Profile(name); err == nil && unix.Access(p.Home, unix.X_OK) == unix.EACCES {
		return m.Fail(cmdline.ExitNotAllowed, "cannot %s: uid %d may not look into its home %q; be root", m.action, os.Geteuid(), p.Home)
	}
	return m.Fail(cmdline.ExitUnknown, "cannot %s: there is no such profile; hinit profile list shows them%s", m.action, cmdline.DidYouMean(name, names))
}

// changeProfiles changes profiles by the agent's own command, or without such a command by the function itself. Then it makes
// the init read the profiles.
func (m *profileManager) changeProfiles(command []string, vars map[string]string, itself func() error) int {
	done, err := m.runAgentCommand(command, vars)
	if err == nil && !done {
		err = itself()
	}
	if err != nil || m.client == nil {
		return m.ReportError(m.action, err)
	}
	return m.ReportError(m.action, m.client.Rescan(context.Background()))
}

// agentCommandTimeout is the time for a command of the agent. The removal of a large home takes minutes. Without a limit, the
// agent could keep root's command waiting by SIGSTOP to its own command. A test changes the timeout.
var agentCommandTimeout = 30 * time.Minute

// runAgentCommand runs the agent's own command as the agent's user. If no command is configured, done is false. It prints the
// output only of a failed command.
func (m *profileManager) runAgentCommand(command []string, vars map[string]string) (done bool, err error) {
	argv := m.cfg.Expand(command, vars)
	if len(argv) == 0 || strings.HasPrefix(argv[0], "/") && unix.Access(argv[0], unix.F_OK) != nil {
		return false, nil
	}
	env := map[string]string{"HOME": m.cfg.ExpandString(m.cfg.Agent.Env["HOME"], nil)}
	// Without its own session, the agent could type into the root shell that runs hinit.
	spec := proc.Spec{ID: 1, Argv: argv, Env: proc.SetEnv(boot.ContainerEnv(m.cfg.Home), env), Dir: m.cfg.Home, Cred: m.agent.Cred}
	ctx, cancel := context.WithTimeout(context.Background(), agentCommandTimeout)
	defer cancel()
	out, errs, x, err := proc.Output(ctx, spec, 32<<10)
	name := strings.Join(argv, " ")
	switch {
	case err != nil:
		return false, err
	case ctx.Err() != nil:
		return false, fmt.Errorf("%q was ended by %s (hinit kills it after %v)", name, show.SignalName(x.Signal), agentCommandTimeout)
	case x.Signal != 0:
		return false, fmt.Errorf("%q was ended by %s", name, show.SignalName(x.Signal))
	case x.Code != 0:
		return false, fmt.Errorf("%q has ended with code %d: %s", name, x.Code, strings.Join(strings.Fields(string(out)+" "+string(errs)), " "))
	}
	return true, nil
}

// confirm asks the user a question on the terminal, and returns whether the answer is yes. Without a terminal it returns an
// error.
func (m *profileManager) confirm(question string) (bool, error) {
	if !proc.IsTerminal(m.In) {
		return false, errors.New("it asks first, and there is no terminal to answer at; add --yes")
	}
	fmt.Fprint(m.Err, question)
	answer, err := bufio.NewReader(m.In).ReadString('\n')
	if err != nil {
		return false, nil
	}
	return slices.Contains([]string{"y", "yes"}, strings.ToLower(strings.TrimSpace(answer))), nil
}

// profileRow describes one profile in the output of `hinit profile … --json`, and in a row of `hinit profile list`. For a
// deleted profile it has the last values, without the gateway's.
type profileRow struct {
	Name   string `json:"name"`
	Home   string `json:"home"`
	Active bool   `json:"active"` // the agent's commands use this profile by default
	// state that decides whether the gateway starts at boot; "" if the caller may not read it
	PriorState   string `json:"prior_state"`
	Gateway      string `json:"gateway"`             // state of the gateway; "" when no init is reachable
	DesiredState string `json:"want"`                // desired state: up or down; "" when no init is reachable
	PID          int    `json:"pid"`                 // PID of the gateway; 0 if it does not run
	ServedBy     string `json:"served_by,omitempty"` // gateway that serves the profile, as in the status
	Log          string `json:"log"`
	Problem      string `json:"problem,omitempty"` // fault in the profile's files
}

// list prints all profiles. If only is set, it prints just that profile.
func (m *profileManager) list(only string) int {
	rows, warnings, err := m.profileRows(only)
	if err != nil || only != "" && len(rows) == 0 {
		return m.printMissing(only, err)
	}
	switch one := only != ""; {
	case !m.printsJSON:
		m.printRows(rows, one)
	case one:
		err = cmdline.WriteJSON(m.Out, rows[0], "  ")
	default:
		err = cmdline.WriteJSON(m.Out, rows, "  ")
	}
	code := m.ReportError(m.action, err)
	for _, w := range warnings {
		if only == "" && code == cmdline.ExitDone {
			fmt.Fprintln(m.Err, "warning:", show.EscapeLine(w.String()))
		}
	}
	return code
}

// profileRows returns warnings, and a row for each profile with the state of its gateway. If only is set, it returns just the
// row of that profile.
func (m *profileManager) profileRows(only string) ([]profileRow, []profiles.Warning, error) {
	found, warnings, err := m.store.Discover()
	if err != nil {
		return nil, nil, err
	}
	var st client.Status
	if m.client != nil {
		if st, err = m.client.Status(context.Background()); err != nil {
			return nil, nil, err
		}
	}
	active, err := m.store.Active()
	if err != nil {
		warnings = append(warnings, profiles.Warning{Message: "cannot tell which profile is active: " + err.Error()})
	}
	rows, listed := []profileRow{}, make(map[string]bool)
	for _, p := range found {
		state, err := m.store.ReadState(p.Name)
		if err != nil {
			warnings = append(warnings, profiles.Warning{Profile: p.Name, Message: fmt.Sprintf("cannot use the state of profile %q: %v", p.Name, err)})
		}
		rows = append(rows, profileRow{Name: p.Name, Home: p.Home, Active: p.Name == active, PriorState: state.PriorState()})
		listed[p.Name] = true
	}
	gateways := make(map[string]client.Service)
	for _, s := range st.Services {
		if s.Kind != client.KindGateway {
			continue
		}
		gateways[s.Profile] = s
		if s.HasOwnUser() && !listed[s.Profile] {
			p, _ := m.store.Profile(s.Profile)
			rows = append(rows, profileRow{Name: s.Profile, Home: p.Home, Active: s.Profile == active})
			warnings = slices.DeleteFunc(warnings, func(w profiles.Warning) bool { return w.Profile == s.Profile })
		}
	}
	slices.SortFunc(rows, func(a, b profileRow) int { return profiles.Compare(a.Name, b.Name) })
	rows = slices.DeleteFunc(rows, func(r profileRow) bool { return only != "" && r.Name != only })
	for i := range rows {
		row := &rows[i]
		s := gateways[row.Name]
		row.Gateway, row.DesiredState, row.PID, row.ServedBy = s.State, s.Want, s.PID, s.ServedBy
		row.Log = m.cfg.Logs.Dir + "/" + row.Name + "/current"
		for _, w := range warnings {
			if w.Profile == row.Name {
				row.Problem = w.Message
			}
		}
	}
	return rows, warnings, nil
}

// printRows prints rows as a table. If one is true, it prints the only row with all fields.
func (m *profileManager) printRows(rows []profileRow, one bool) {
	tw := tabwriter.NewWriter(m.Out, 0, 0, 2, ' ', 0)
	defer tw.Flush()
	if one {
		r := rows[0]
		fmt.Fprintf(tw, "name\t%s\nhome\t%s\nactive\t%v\nrecorded state\t%s\ngateway\t%s\nwant\t%s\npid\t%s\nlog\t%s\n",
			r.Name, show.EscapeLine(r.Home), r.Active, show.EscapeLine(cmp.Or(r.PriorState, "-")), cmp.Or(r.Gateway, "-"), cmp.Or(r.DesiredState, "-"),
			show.FormatNumber(r.PID), show.EscapeLine(r.Log))
		if r.ServedBy != "" {
			fmt.Fprintf(tw, "served by\t%s\n", r.ServedBy)
		}
		if r.Problem != "" {
			fmt.Fprintf(tw, "problem\t%s\n", show.EscapeLine(r.Problem))
		}
		return
	}
	served := slices.ContainsFunc(rows, func(r profileRow) bool { return r.ServedBy != "" })
	by := func(text string) string { // the table has the column "served by" only if another gateway serves a profile
		if !served {
			return ""
		}
		return "\t" + text
	}
	fmt.Fprintf(tw, "NAME\tGATEWAY\tPID%s\tRECORDED\tHOME\n", by("SERVED BY"))
	for _, r := range rows {
		name := show.EscapeName(r.Name)
		if r.Active {
			name += " *"
		}
		prior := show.EscapeName(cmp.Or(r.PriorState, "-"))
		fmt.Fprintf(tw, "%s\t%s\t%s%s\t%s\t%s\n", name, cmp.Or(r.Gateway, "-"), show.FormatNumber(r.PID), by(cmp.Or(r.ServedBy, "-")), prior, show.EscapeLine(r.Home))
	}
}
