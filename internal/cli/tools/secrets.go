package tools

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/internal/cli"
	"hinit/internal/cmdline"
	"hinit/internal/control/show"
	"hinit/internal/procusage"
	"hinit/internal/redact"
	"hinit/profiles"
)

// secrets are values that must not appear in any file of a bundle. unknown describes unreadable secrets, with the reasons.
type secrets struct{ values, unreadable []string }

// add adds each line of a value, in all forms of a file: unchanged, escaped for people, and in JSON.
func (s *secrets) add(value string) {
	for line := range strings.Lines(value) {
		line = strings.TrimRight(line, "\r\n")
		var doc strings.Builder
		_ = cmdline.WriteJSON(&doc, line, "")
		s.values = append(s.values, line, show.EscapeLine(line), strings.TrimSuffix(doc.String(), "\"\n")[1:])
	}
}

// secrets collects the secrets in the configuration and in the .env of each profile. It also collects the secrets in the
// environments of this command, of process 1 and of the services in st.
func (b *bundle) secrets(st client.Status) (found secrets) {
	add := func(name, value string) {
		if !slices.Contains(b.secretValues, name) {
			value = redact.SecretPart(name, value)
		}
		found.add(value)
	}
	one, _ := readProcOne("environ")
	variables, err := withDeadline(b.deadline.Add(-bundleTimeout/2), func() ([]string, error) { return serviceVariables(b.Terminal, st) })
	if err != nil {
		found.unreadable = append(found.unreadable, "cannot read the variables of running services: "+err.Error())
	}
	for _, pair := range slices.Concat(os.Environ(), strings.Split(string(one), "\x00"), variables) {
		name, value, _ := strings.Cut(pair, "=")
		add(name, value)
	}
	if cfg, err := b.ConfigOf(b.init); err != nil && b.init.ServicesFile != "" { // eachProfile reports this error for any other init
		found.unreadable = append(found.unreadable, "cannot read the configuration: "+err.Error())
	} else if err == nil {
		addAll := func(env map[string]string) {
			for name, value := range env {
				add(name, value)
			}
		}
		addAll(cfg.Agent.Env)
		for _, s := range cfg.Services {
			addAll(s.Env)
		}
		for _, p := range cfg.Profiles.Overrides {
			addAll(p.Env)
		}
		for _, r := range cfg.Runs {
			addAll(r.Env)
		}
	}
	of, err := withDeadline(b.deadline.Add(-bundleTimeout/2), b.profileSecrets)
	if err != nil && !errors.Is(err, errNoAgent) {
		of.unreadable = append(of.unreadable, "cannot read the .env of the profiles: "+err.Error())
	}
	return secrets{append(found.values, of.values...), append(found.unreadable, of.unreadable...)}
}

// serviceVariables returns the environments of the running services in st, which may include variables from files. If some are
// unreadable, it returns the others and an error that names the services.
func serviceVariables(t *cli.Terminal, st client.Status) (variables []string, err error) {
	root := procPathOf(t, st.Init.PID)
	var unread []string
	for _, s := range st.Services {
		if s.PID == 0 {
			continue
		}
		environ, failed := procusage.ReadProcFile(fmt.Sprintf("%s/%d/environ", root, s.PID))
		ended := errors.Is(failed, fs.ErrNotExist) || errors.Is(failed, unix.ESRCH)
		if failed != nil && (!ended || root == "") { // without a /proc of the service, the process may still run
			unread, err = append(unread, s.Name), failed
		}
		variables = append(variables, strings.Split(string(environ), "\x00")...)
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", strings.Join(unread, ", "), err)
	}
	return variables, err
}

// profileSecrets collects the secrets in the .env of each profile.
func (b *bundle) profileSecrets() (found secrets, err error) {
	err = b.eachProfile(func(store *profiles.Store, p profiles.Profile) {
		values, more, err := store.Secrets(p.Name)
		vars, _ := store.Env(p.Name) // the call of Secrets has already reported this error
		for _, name := range b.secretValues {
			values = append(values, vars[name])
		}
		found.add(strings.Join(values, "\n"))
		if err != nil || more {
			err = cmp.Or(err, errors.New("it has too many"))
			found.unreadable = append(found.unreadable, fmt.Sprintf("cannot take all secrets of the .env of %s: %v", p.Name, err))
		}
	})
	return found, err
}
