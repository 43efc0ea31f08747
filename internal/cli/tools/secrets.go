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

// secrets are the values that no file of a bundle may contain. unknown says which secrets could not be read, and why.
type secrets struct{ values, unknown []string }

// add adds each line of a value, in the forms that it can have in a file: as it is, escaped for people, and in JSON.
func (s *secrets) add(value string) {
	for line := range strings.Lines(value) {
		line = strings.TrimRight(line, "\r\n")
		var doc strings.Builder
		_ = cmdline.WriteJSON(&doc, line, "") // WriteJSON never fails for a text
		s.values = append(s.values, line, show.Line(line), strings.TrimSuffix(doc.String(), "\"\n")[1:])
	}
}

// secrets finds the secrets in the configuration and in the .env of each profile. It also finds them in the environments of this
// command, of process 1 and of the services in st.
func (b *bundle) secrets(st client.Status) (found secrets) {
	add := func(name, value string) {
		if !slices.Contains(b.hide, name) {
			value = redact.SecretPart(name, value)
		}
		found.add(value)
	}
	one, _ := readProcOne("environ")
	variables, err := withDeadline(b.end.Add(-bundleTime/2), func() ([]string, error) { return serviceVariables(b.Terminal, st) })
	if err != nil {
		found.unknown = append(found.unknown, "cannot read the variables of running services: "+err.Error())
	}
	for _, pair := range slices.Concat(os.Environ(), strings.Split(string(one), "\x00"), variables) {
		name, value, _ := strings.Cut(pair, "=")
		add(name, value)
	}
	if cfg, err := b.ConfigOf(b.init); err != nil && b.init.ServicesFile != "" { // of another init, eachProfile reports the error
		found.unknown = append(found.unknown, "cannot read the configuration: "+err.Error())
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
	of, err := withDeadline(b.end.Add(-bundleTime/2), b.profileSecrets)
	if err != nil && !errors.Is(err, errNoAgent) {
		of.unknown = append(of.unknown, "cannot read the .env of the profiles: "+err.Error())
	}
	return secrets{append(found.values, of.values...), append(found.unknown, of.unknown...)}
}

// serviceVariables returns the environments of the running services in st. Some of their variables may be from files. After an error,
// which names the services whose environments it can't read, it returns the others.
func serviceVariables(t *cli.Terminal, st client.Status) (variables []string, err error) {
	root := procOf(t, st.Init.PID)
	var unread []string
	for _, s := range st.Services {
		if s.PID == 0 {
			continue
		}
		environ, failed := procusage.ReadHead(fmt.Sprintf("%s/%d/environ", root, s.PID))
		ended := errors.Is(failed, fs.ErrNotExist) || errors.Is(failed, unix.ESRCH)
		if failed != nil && (!ended || root == "") { // without root, this command does not see the processes
			unread, err = append(unread, s.Name), failed
		}
		variables = append(variables, strings.Split(string(environ), "\x00")...)
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", strings.Join(unread, ", "), err)
	}
	return variables, err
}

// profileSecrets finds the secrets in the .env of each profile.
func (b *bundle) profileSecrets() (found secrets, err error) {
	err = b.eachProfile(func(store *profiles.Store, p profiles.Profile) {
		values, more, err := store.Secrets(p.Name)
		vars, _ := store.Env(p.Name) // an error was already reported by Secrets
		for _, name := range b.hide {
			values = append(values, vars[name])
		}
		found.add(strings.Join(values, "\n"))
		if err != nil || more {
			err = cmp.Or(err, errors.New("it has too many"))
			found.unknown = append(found.unknown, fmt.Sprintf("cannot take all secrets of the .env of %s: %v", p.Name, err))
		}
	})
	return found, err
}
