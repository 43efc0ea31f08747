package tools

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/internal/boot"
	"hinit/internal/cli"
	"hinit/internal/cmdline"
	"hinit/internal/control/show"
	"hinit/internal/fsutil"
	"hinit/internal/proc"
	"hinit/internal/version"
	"hinit/internal/wholefile"
	"hinit/profiles"
	"hinit/profiles/archive"
)

// archiveVerbs are the subcommands of hinit profile that use archives.
var archiveVerbs = map[string]cmdline.Verb{
	"export": {
		Args: "NAME [-o FILE | -] | --all DIR", Summary: "write an archive of a profile, whose gateway may run",
		Help: "The archive is a tar stream for standard output or a file. Databases of SQLite are copied by its backup API, other files until they\n" +
			"don't change any more. The command reports which files are of a later moment than the rest.",
	},
	"import": {
		Args: "NAME [FILE | -]", Summary: "make a profile of an archive",
		Help: "The whole archive is checked before the profile appears. Its gateway stays down without --start.",
	},
	"clone": {
		Args: "FROM TO", Summary: "copy a profile, except for what two profiles must not share",
		Help: "It leaves out tokens of bots, ports, pairings and files with credentials, and names them.",
	},
}

// archiver carries out one of the subcommands export, import and clone of hinit profile.
type archiver struct {
	*profileManager

	ctx                               context.Context //nolint:containedctx // ends by a signal to an export or a clone, so that it removes its copy
	exporting                         archive.Export
	importing                         archive.Import
	outPath, exportAllDir             string
	stopsGateway                      bool // whether to stop the gateway for the last pass of the copy
	startsGateway, printsResumeOffset bool
	archiveHead                       archive.Head // description at the beginning of the archive
	checksum                          string
	// starts the gateway again that was stopped for the import; nil without a stop
	restartGateway func() error
}

// runArchiveVerb parses the arguments of a subcommand and runs it.
func runArchiveVerb(t *cli.Terminal, name string, args []string) int {
	v, a := archiveVerbs[name], &archiver{}
	v.Program, v.Name, v.Action = "hinit profile", name, name+" profiles"
	flags := a.flags(name)
	words, code, ok := v.Parse(flags, args, 0, 2, t.Out, t.Err)
	if !ok {
		return code
	}
	names := map[string]int{"export": 1, "import": 1, "clone": 2}[name]
	if a.exportAllDir != "" {
		names = 0
	}
	if !v.CheckArgCount(words, names, 2*min(names, 1), t.Err) {
		return cmdline.ExitUsage
	}
	if name == "export" && a.exporting.Offset > 0 && a.exporting.Snapshot == "" {
		return t.Fail(cmdline.ExitUsage, "cannot %s: --from is a place in a copy that was kept; name it with --snapshot", v.Action)
	}
	m, code := newProfileManager(t, name, words[:names], true)
	if code != cmdline.ExitDone {
		return code
	}
	a.profileManager, a.ctx = m, context.Background()
	if name != "import" {
		var stop context.CancelFunc
		a.ctx, stop = cmdline.InterruptibleContext()
		context.AfterFunc(a.ctx, func() {
			stop()
			// The next signal ends this process at once. A write to a reader that does not read ends after 10 s.
			time.AfterFunc(10*time.Second, func() { _ = unix.Kill(os.Getpid(), unix.SIGTERM) })
		})
	}
	if name != "export" && words[names-1] == profiles.Default {
		return t.Fail(cmdline.ExitUsage, "cannot %s: the root profile always exists; give the new one another name", m.action)
	}
	if m.client == nil && (a.startsGateway || a.stopsGateway) {
		return t.Fail(cmdline.ExitUnreachable, "cannot %s: no hinit answers that could start or stop a gateway", m.action)
	}
	a.importing.Offset, a.exporting.ForClone = a.exporting.Offset, name == "clone"
	file := append(words, "-")[names]
	switch {
	case a.exportAllDir != "":
		return a.exportAll()
	case name == "clone":
		return a.cloneProfile(words[0], words[1])
	case name == "import":
		return a.importArchive(words[0], file)
	}
	a.outPath = cmp.Or(a.outPath, file)
	return a.exportProfile(words[0], a.outPath)
}

func (a *archiver) flags(verb string) *flag.FlagSet {
	f := cmdline.NewFlagSet(verb)
	if verb != "import" {
		f.BoolVar(&a.exporting.IncludeSecrets, "secrets", false, "with .env and other files that hold secrets")
		f.BoolVar(&a.stopsGateway, "stop", false, "stop the gateway for the last part of the copy, and print for how long")
		f.StringVar(&a.exporting.ScratchDir, "scratch", "", "`DIR` for the copy, where the volume is full or read-only")
	}
	if verb == "export" {
		f.StringVar(&a.outPath, "o", "", "write to `FILE`; - is standard output")
		f.StringVar(&a.exportAllDir, "all", "", "export all profiles, each to NAME.tar in `DIR`")
		f.BoolVar(&a.exporting.KeepSnapshot, "keep", false, "keep the copy for --snapshot")
		f.StringVar(&a.exporting.Snapshot, "snapshot", "", "send the copy `ID` that an earlier export has kept")
	} else {
		f.BoolVar(&a.startsGateway, "start", false, "start the gateway of the new profile")
	}
	if verb == "import" {
		f.BoolVar(&a.importing.MayReplace, "replace", false, "stop an existing profile and replace it")
		f.BoolVar(&a.importing.AllowWithoutSecrets, "without-secrets", false, "replace it by an archive without secrets too")
		f.BoolVar(&a.printsResumeOffset, "where", false, "print where an interrupted import continues: snapshot and offset")
	}
	if verb != "clone" {
		f.Int64Var(&a.exporting.Offset, "from", 0, "begin at this `OFFSET` of the archive; export needs --snapshot too")
	}
	return f
}

// exportAll writes an archive of each profile, and continues after a failed export.
func (a *archiver) exportAll() (code int) {
	all, warnings, err := a.store.Discover()
	for _, w := range warnings {
		code = a.Fail(cmdline.ExitFailed, "cannot export all profiles: %s", show.EscapeLine(w.String()))
	}
	for _, p := range all {
		if a.ctx.Err() != nil {
			break
		}
		a.action = fmt.Sprintf("export profile %q", p.Name)
		code = max(code, a.exportProfile(p.Name, filepath.Join(a.exportAllDir, p.Name+".tar")))
	}
	return max(code, a.ReportError("export all profiles", err))
}

// exportProfile writes an archive to a file, or to standard output.
func (a *archiver) exportProfile(name, to string) int {
	if to == "-" && a.IsScreen {
		return a.Fail(cmdline.ExitUsage, "cannot %s: standard output is a terminal; name a file with -o", a.action)
	}
	if _, there, err := a.lookUpProfile(name); !there {
		return a.printMissing(name, err)
	}
	// Without this call, a write to a vanished reader would end the process by SIGPIPE.
	signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE)
	if to == "-" {
		return a.reportResult("exported profile "+name, a.writeArchive(name, a.RawOutput()))
	}
	if info, err := os.Stat(to); err == nil && !info.Mode().IsRegular() { // Replace would replace a device such as /dev/null by a file
		return a.ReportError(a.action, fmt.Errorf("%s is no regular file; name a file, or - for standard output", to))
	}
	return a.reportResult("exported profile "+name, wholefile.Replace(to, 0o600, true, func(out io.Writer) (int64, error) { return 0, a.writeArchive(name, out) }))
}

// writeArchive writes an archive of the profile to the writer to.
func (a *archiver) writeArchive(name string, to io.Writer) error {
	p, err := a.store.Profile(name)
	if err != nil {
		return err
	}
	user, cred, err := a.homeOwner(name)
	if err == nil && a.exporting.ForClone && cred != nil && a.isTenant(cred.UID) && !a.agent.WithTenants(a.cfg).Tenants.Includes(a.importing.Name) {
		err = fmt.Errorf("its home belongs to uid %d, the user of an isolated profile, and the agent's user could read the copy; set isolation: user for profile %s too", cred.UID, a.importing.Name)
	}
	if err != nil {
		return err
	}
	program, err := cmdline.SiblingProgram("hinit-profile")
	if err != nil {
		return fmt.Errorf("%w; install hinit-profile beside hinit", err)
	}
	x := a.exporting
	x.Home, x.Name, x.Version = p.Home, name, version.Get().Version
	if name == profiles.Default {
		x.SkipPaths = []string{boot.ProfilesDir, "logs/gateways", ".hinit"}
	}
	out := cmp.Or(a.exportAllDir, a.outPath)
	if path, err := filepath.Abs(out); err == nil && out != "" && out != "-" { // the output may be in the home, so leave out older archives
		x.SkipPaths = append(x.SkipPaths, strings.TrimPrefix(path, p.Home+"/"))
	}
	x.Backup = func(ctx context.Context, from, to *os.File, database string) error {
		return copyDatabase(ctx, program, cred, from, to, database)
	}
	if x.ScratchDir != "" {
		fd, err := openScratch(x.ScratchDir, user)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		x.ScratchDir = "/proc/self/fd/" + strconv.Itoa(fd)
	}
	wake := func() error { return nil }
	if a.stopsGateway {
		x.StopGateway = func() error {
			return asProcessUser(func() (err error) {
				wake, err = a.stopGateway(name)
				return err
			})
		}
		x.RestartGateway = func() error { return asProcessUser(wake) }
	}
	kept := false
	err = user.Do(func() (err error) {
		a.archiveHead, a.checksum, kept, err = x.Run(a.ctx, to)
		return err
	})
	if kept {
		fmt.Fprintf(a.Err, "the copy is kept: hinit profile export %s --snapshot %s --from OFFSET sends it again\n", name, a.archiveHead.Snapshot)
	}
	return errors.Join(err, wake())
}

// stop stops the gateway of a profile and waits until it has ended. wasUp reports whether the gateway was wanted up. If the
// gateway is down, or without an init, stop gives no order. A full disk could not record the order, and would prevent the
// deletion of the profile.
func (m *profileManager) stop(name string) (wasUp bool, code int) {
	if m.client == nil {
		return false, cmdline.ExitDone
	}
	ctx, slot := context.Background(), profiles.SlotName(name)
	s, err := m.client.Service(ctx, slot)
	if errors.Is(err, client.ErrUnknown) || err == nil && s.State == client.StateDown && s.Want == "down" {
		return false, cmdline.ExitDone
	}
	if err == nil {
		_, err = m.client.Stop(ctx, slot, client.WaitOptions{Wait: true, Timeout: m.cfg.Stop.Grace + 5*time.Second})
	}
	if err != nil {
		return false, m.ReportError("stop "+slot, err)
	}
	return s.Want == "up", cmdline.ExitDone
}

// stopGateway stops a gateway. The first call of wake restarts the gateway if it was wanted up.
func (a *archiver) stopGateway(name string) (wake func() error, err error) {
	since := time.Now()
	wasUp, code := a.stop(name)
	if code != cmdline.ExitDone {
		err = errors.New("its gateway does not stop")
	}
	return sync.OnceValue(func() (err error) {
		if wasUp {
			_, err = a.client.Start(context.Background(), profiles.SlotName(name), client.WaitOptions{})
			fmt.Fprintf(a.Err, "the gateway of %s was stopped for %.2f s\n", name, time.Since(since).Seconds())
		}
		return err
	}), err
}

// asProcessUser calls fn as the user of the process, and waits until fn returns. It uses another goroutine, because
// [fsutil.Actor.Do] may have switched the caller's goroutine to another user.
func asProcessUser(fn func() error) error {
	done := make(chan error)
	go func() { done <- fn() }()
	return <-done
}

// openScratch opens the directory given by --scratch, or creates it as user. As root, it follows only symbolic links that root
// has made.
func openScratch(path string, user *fsutil.Actor) (fd int, err error) {
	makeErr := user.Do(func() error { return os.MkdirAll(path, 0o700) })
	if fd, err = wholefile.OpenForRoot(path); err != nil {
		return fd, &fs.PathError{Op: "open", Path: path, Err: cmp.Or(makeErr, err)}
	}
	return fd, nil
}

// copyDatabase copies an SQLite database from one directory to another by SQLite's backup API. A child process makes the copy as the
// owner of the home. It restricts itself to the two directories, because an agent can replace the database by a link.
func copyDatabase(ctx context.Context, program string, cred *proc.Cred, from, to *os.File, database string) error {
	return asProcessUser(func() error {
		runtime.LockOSThread() // DiesWithStarter binds the child to this thread; the thread ends with this goroutine
		spec := proc.Spec{
			ID: 1, Argv: []string{program, database, "/proc/self/fd/3"}, Dir: "/proc/self/fd/" + strconv.Itoa(int(from.Fd())), DirIsFD: true, Cred: cred,
			Files: []*os.File{nil, nil, nil, to}, DiesWithStarter: true,
		}
		_, errs, x, err := proc.Output(ctx, spec, 4<<10)
		if err == nil && (x.Code != 0 || x.Signal != 0) {
			err = errors.New(strings.TrimSpace(string(errs)))
		}
		return err
	})
}

// homeOwner returns the owner of a profile's home: user for file operations, cred for processes.
func (a *archiver) homeOwner(name string) (user *fsutil.Actor, cred *proc.Cred, err error) {
	user, cred = a.agent.Actor, a.agent.Cred
	err = a.store.WithHome(name, func(d *fsutil.Dir, home string) error {
		info, err := d.Lstat(home)
		if err == nil && name != profiles.Default && a.isTenant(fsutil.UID(info)) {
			uid := fsutil.UID(info)
			user, cred = fsutil.NewActor(fsutil.Identity{UID: uid, GID: uid}), &proc.Cred{UID: uid, GID: uid}
		}
		return err
	})
	if cred != nil && !user.SwitchesIdentity() {
		err = cmp.Or(err, errors.New("root can't become the agent's user here"))
	}
	return user, cred, err
}

// importArchive creates a profile from the archive in the file from, or on standard input if from is "-". With --where it only
// prints the offset at which an interrupted import continues.
func (a *archiver) importArchive(name, from string) (code int) {
	a.prepareImport(name)
	if a.printsResumeOffset {
		snapshot, at := "", int64(0)
		err := a.runImport(func() (err error) {
			snapshot, at, err = a.importing.InterruptedAt()
			return err
		})
		switch {
		case err == nil:
			fmt.Fprintln(a.Out, snapshot, at)
		case errors.Is(err, fs.ErrNotExist):
			err = errors.New("no import of this profile was interrupted")
		}
		return a.ReportError(a.action, err)
	}
	in := a.In
	if from != "-" {
		path, err := filepath.Abs(from)
		if err != nil {
			return a.ReportError(a.action, err)
		}
		if in, err = fsutil.WithParentDir(path, nil, (*fsutil.Dir).Open); err != nil {
			return a.ReportError(a.action, err)
		}
		defer in.Close()
	} else if proc.IsTerminal(in) {
		return a.Fail(cmdline.ExitUsage, "cannot %s: standard input is a terminal; name a file", a.action)
	}
	return a.reportResult("imported profile "+name, a.readArchive(in))
}

// cloneProfile copies a profile: it sends an export of the profile from directly to an import as the profile to.
func (a *archiver) cloneProfile(from, to string) int {
	if _, there, err := a.lookUpProfile(from); !there {
		return a.printMissing(from, err)
	}
	if exists, _ := a.store.Exists(to); exists { // with or without the marker
		return a.Fail(cmdline.ExitFailed, "cannot %s: profile %q exists already", a.action, to)
	}
	a.prepareImport(to)
	r, w := io.Pipe()
	sender := *a
	sent := make(chan error, 1)
	go func() {
		err := sender.writeArchive(from, w)
		sent <- err
		_ = w.CloseWithError(err)
	}()
	err := a.readArchive(r)
	_ = r.CloseWithError(err)
	return a.reportResult(fmt.Sprintf("cloned profile %s as %s", from, to), cmp.Or(<-sent, err))
}

// prepareImport sets up a.importing for the profile name. If the import replaces a profile, importing.Ready stops the profile's
// gateway just before the replacement.
func (a *archiver) prepareImport(name string) {
	a.importing.Dir, a.importing.Name, a.importing.Marker = filepath.Join(a.store.Root(), boot.ProfilesDir), name, a.store.Marker()
	a.importing.BeforeCommit = func() error {
		return asProcessUser(func() error {
			home, owner, err := a.openHome(name, 0)
			if errors.Is(err, fs.ErrNotExist) {
				return nil // there is no profile to replace
			}
			if err == nil {
				a.restartGateway, err = a.stopGateway(name)
				ctx, stop := cmdline.InterruptibleContext()
				context.AfterFunc(ctx, func() {
					stop()
					_ = errors.Join(a.restartGateway(), unix.Kill(os.Getpid(), unix.SIGTERM))
				})
				err = errors.Join(err, a.giveDirsToOwner(home, owner), home.Close())
			}
			return err
		})
	}
}

// readArchive creates a profile from the archive in. Then it makes the init read the profiles. With --start it also starts the
// gateway.
func (a *archiver) readArchive(in io.Reader) error {
	err := a.runImport(func() (err error) {
		a.archiveHead, a.checksum, err = a.importing.Run(in)
		return err
	})
	if err != nil && a.restartGateway != nil {
		err = errors.Join(err, a.restartGateway())
	}
	if err == nil && a.client != nil {
		err = a.client.Rescan(context.Background())
	}
	if err == nil && a.startsGateway {
		_, err = a.client.Start(context.Background(), profiles.SlotName(a.importing.Name), client.WaitOptions{Wait: true, Timeout: time.Minute})
	}
	return err
}

// reportResult prints the result of an export or import on standard error, because standard output may be the archive.
func (a *archiver) reportResult(done string, err error) int {
	if err != nil {
		return a.ReportError(a.action, err)
	}
	fmt.Fprintf(a.Err, "%s: %d files, %d bytes, %s, sha256 %s\n", done, a.archiveHead.Files, a.archiveHead.Bytes, a.archiveHead.Moment, a.checksum)
	line := func(names archive.NameList, what string) {
		if some := names[:min(len(names), 5)]; len(some) < len(names) {
			what, names = fmt.Sprintf("%s, the first of %d", what, len(names)), some
		}
		if len(names) > 0 {
			fmt.Fprintln(a.Err, show.EscapeLine(what+": "+strings.Join(names, ", ")))
		}
	}
	line(a.archiveHead.Moved, "of another moment than the rest")
	line(a.archiveHead.Torn, "changed during each copy")
	for _, why := range slices.Sorted(maps.Keys(a.archiveHead.LeftOut)) {
		line(a.archiveHead.LeftOut[why], "left out ("+why+")")
	}
	return cmdline.ExitDone
}
