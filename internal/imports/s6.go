package imports

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/samber/lo"
	"golang.org/x/sys/unix"

	"hinit/internal/wholefile"
)

// s6Import is the import of one directory with s6 service directories or s6-rc source directories.
type s6Import struct {
	*importer
	root    string
	bundles map[string][]string
}

// importS6 reads a service directory, a scan directory, or source directories of s6-rc.
func (im *importer) importS6(path string) error {
	path, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	im.defaults.set("restart.policy", "always")
	d := &s6Import{importer: im, root: path, bundles: make(map[string][]string)}
	if exists(filepath.Join(path, "run")) {
		d.importLongrun(filepath.Base(path), path)
		return nil
	}
	list, err := readDir(path)
	if err != nil {
		return err
	}
	for _, e := range list {
		name, dir := e.Name(), filepath.Join(path, e.Name())
		if info, err := os.Stat(dir); err != nil || !info.IsDir() || name[0] == '.' {
			continue
		}
		switch kind := d.readWord(dir, "type"); {
		case kind == "oneshot":
			d.importOneshot(name, dir)
		case kind == "bundle":
			d.bundles[name] = d.readList(dir, "contents")
			im.addNote(fileRef(dir), "hinit has no bundles; the services in this one: %s", strings.Join(d.bundles[name], ", "))
		case kind == "longrun" || exists(filepath.Join(dir, "run")):
			d.importLongrun(name, dir)
		case kind != "":
			im.addNote(fileRef(dir, "type"), "the type %q is not known", kind)
		default:
			im.addNote(fileRef(dir), "has neither a file run nor a file type, and is left out")
		}
	}
	for _, s := range im.services {
		d.addDependencies(s)
	}
	d.disableNonBootServices()
	return nil
}

// disableNonBootServices disables the services outside the bundle that starts at boot. The name of this bundle is user in
// s6-overlay, and default in other programs with s6-rc.
func (d *s6Import) disableNonBootServices() {
	bundle, is := lo.Find([]string{"user", "default"}, func(name string) bool { return len(d.bundles[name]) > 0 })
	if !is {
		return
	}
	pulled := appendReachable(nil, bundle, func(name string) []string {
		return append(d.readList(filepath.Join(d.root, name), "dependencies"), d.bundles[name]...)
	})
	for _, s := range d.services {
		if !slices.Contains(pulled, s.oldName) {
			s.set("enabled", "false")
			d.addNote(fileRef(s.place.file), "is not in the bundle %s, so it is not enabled; hinit start %s starts it", bundle, s.name)
		}
	}
}

// noteInterpreter adds a note if this machine lacks the interpreter of a script.
func (d *s6Import) noteInterpreter(script string) {
	if words := shebang(script); len(words) > 0 && !exists(words[0]) {
		d.addNote(sourceRef{place: place{script, 1}}, "needs %s, which is not on this machine; install it, or write the script for sh", words[0])
	}
}

func shebang(script string) []string {
	text, _ := readFile(script) // an unreadable script counts as a script without interpreter
	first, _, _ := strings.Cut(string(text), "\n")
	if !strings.HasPrefix(first, "#!") {
		return nil
	}
	return strings.Fields(first[2:])
}

// readDir lists a directory. If root runs the program, a link that another user may have made is an error, as in readFile.
func readDir(path string) ([]os.DirEntry, error) {
	fd, err := wholefile.OpenForRoot(path)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	return os.ReadDir("/proc/self/fd/" + strconv.Itoa(fd))
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// fileRef returns the place of a whole file. parts are the parts of its path.
func fileRef(parts ...string) sourceRef {
	return sourceRef{place: place{file: filepath.Join(parts...)}}
}

// readWord returns the content of a file without blanks at its ends, or "" if the file is missing. Most files of s6 contain one
// word.
func (d *s6Import) readWord(dir, name string) string {
	text, err := readFile(filepath.Join(dir, name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		d.addNote(fileRef(dir, name), "cannot be read: %v", err)
	}
	return strings.TrimSpace(string(text))
}

// readList returns a list of s6-rc: the names of the files in the directory NAME.d or, in older versions, the lines of the file
// NAME.
func (d *s6Import) readList(dir, name string) []string {
	entries, _ := readDir(filepath.Join(dir, name+".d"))
	list := lo.Map(entries, func(e os.DirEntry, _ int) string { return e.Name() })
	text, _ := readFile(filepath.Join(dir, name)) // newer versions don't have this file
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			list = append(list, line)
		}
	}
	return list
}

// s6Rules are the rules for the files of a service directory. Each file is one setting.
var s6Rules = parseRules("s6")

// importFiles imports the files of a service directory by s6Rules, except those in names.
func (d *s6Import) importFiles(s *service, dir string, names ...string) {
	list, _ := readDir(dir)
	for _, e := range list {
		k := setting{sourceRef: fileRef(dir, e.Name()), name: e.Name()}
		if slices.Contains(names, k.name) {
			continue
		}
		if !e.IsDir() {
			k.value = d.readWord(dir, k.name)
		}
		d.apply(s6Rules, s, k)
	}
}

// importLongrun imports the directory of a long-running service. hinit calls its run script in place.
func (d *s6Import) importLongrun(name, dir string) {
	run := filepath.Join(dir, "run")
	if len(d.readList(dir, "consumer-for")) > 0 || exists(filepath.Join(dir, "consumer-for")) {
		d.addNote(fileRef(dir), "is the logger of %s, which hinit is itself; it is left out", strings.Join(d.readList(dir, "consumer-for"), ", "))
		return
	}
	s := d.addService(place{file: dir}, name)
	command := []string{run}
	if info, err := os.Stat(run); err != nil || info.Mode()&0o111 == 0 {
		command = append(shebang(run), run)
		if len(command) == 1 {
			command = []string{"sh", run}
		}
		d.addNote(fileRef(run), "is not executable; %s runs it", command[0])
	}
	s.set("command", command)
	s.set("cwd", dir)
	s.set("log", "true")
	s.set("enabled", enabledValue(exists(filepath.Join(dir, "down"))))
	d.noteInterpreter(run)
	d.importFiles(s, dir, "run", "down")
	if s.text("stop.grace") == "" {
		d.addNote(sourceRef{place{file: dir}, "timeout-kill"}, "s6 waits for ever for the end of the service; hinit sends KILL after stop.grace (30s)")
	}
}

// importOneshot imports a oneshot of s6-rc as a task. The file up contains a command line in the language execline.
func (d *s6Import) importOneshot(name, dir string) {
	s := d.addService(place{file: dir}, name)
	up := filepath.Join(dir, "up")
	text := d.readWord(dir, "up")
	words, err := splitWords(text, shellEscape)
	switch {
	case err == nil && len(words) > 0 && !strings.ContainsAny(text, "\n{}$#"):
		s.set("command", words)
	case shebang(up) != nil:
		s.set("command", append(shebang(up), up))
	default:
		s.set("command", []string{"execlineb", "-P", up})
		d.addNote(fileRef(up), "is a script of execline; install execlineb, or write it for sh")
	}
	d.noteInterpreter(up)
	s.set("once", "boot")
	if exists(filepath.Join(dir, "down")) {
		d.addNote(fileRef(dir, "down"), "a task is not undone when the container stops")
	}
	d.importFiles(s, dir, "up", "down")
}

// addDependencies imports the dependencies of a service. A dependency on a bundle becomes a dependency on each service in the
// bundle.
func (d *s6Import) addDependencies(s *service) {
	dir := filepath.Join(d.root, s.oldName)
	var names []string
	for _, name := range d.readList(dir, "dependencies") {
		names = appendReachable(names, name, func(name string) []string { return d.bundles[name] })
	}
	for _, name := range names {
		if _, bundle := d.bundles[name]; bundle {
			continue
		}
		found := d.findServices(name)
		if len(found) == 0 {
			d.addNote(fileRef(dir, "dependencies.d", name), "there is no such service here; it is not waited for")
		}
		for _, other := range found {
			n := need{name: other.name}
			if other.text("once") == "" && other.text("notify.fd") == "" {
				n.until = "started"
			}
			s.addNeed(n)
		}
	}
}

// appendReachable appends name to list, and all names that next reaches from it, each only once.
func appendReachable(list []string, name string, next func(name string) []string) []string {
	if slices.Contains(list, name) {
		return list
	}
	list = append(list, name)
	for _, one := range next(name) {
		list = appendReachable(list, one, next)
	}
	return list
}
