package shim

import (
	"cmp"
	"errors"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"hinit/internal/account"
	"hinit/shim/lifecycle"
)

// isolatedProfile returns the profile of a command, if PID 1 has isolated the profile. Otherwise it returns "", also for a
// gateway command, which reads no file of a profile. An error means that the list of isolated profiles, or the choice of a
// profile, can't be read.
func (o *options) isolatedProfile(argv, env []string) (string, error) {
	words := argv[min(1, len(argv)):]
	if _, order := lifecycle.Parse(words); order || o.hinitPath == "" {
		return "", nil
	}
	list, err := readTrusted(o.root + account.RuntimeDir + "/" + account.IsolatedProfilesFile)
	if errors.Is(err, unix.ENOENT) || err == nil && list == "" {
		return "", nil
	}
	profile := profileOf(words)
	if profile == "" && err == nil && (len(words) == 0 || words[0] != "profile") { // without a command, or with the command profile, the call concerns all profiles
		profile, err = o.chosenProfile(env)
	}
	if err == nil && !account.ListsProfile(list, profile) {
		profile = ""
	}
	if err == nil && strings.Trim(profile, "abcdefghijklmnopqrstuvwxyz0123456789_-") != "" {
		err = errors.New(strconv.Quote(profile) + " is no name of a profile")
	}
	return profile, err
}

// chosenProfile returns the profile that the agent uses without -p, or "" for the default profile. This is the profile whose
// home is HERMES_HOME, or else the profile in the file active_profile, which `hermes profile use` writes.
func (o *options) chosenProfile(env []string) (string, error) {
	home := path.Clean(cmp.Or(lookupEnv(env, "HERMES_HOME"), o.home, "/"))
	if dir, name := path.Split(home); path.Base(dir) == "profiles" {
		return normalize(name), nil
	}
	if lookupEnv(env, "HERMES_S6_SUPERVISED_CHILD") != "" || lookupEnv(env, "HERMES_SUPERVISED_CHILD") != "" {
		return "", nil // a supervised gateway ignores the choice of `hermes profile use`
	}
	dir, err := unix.Open(home, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", nil // without access to the home, the agent can't read active_profile either
	}
	defer unix.Close(dir)
	// Follow no link: this process is root, and the agent can replace the file.
	fd, err := unix.Openat2(dir, "active_profile", &unix.OpenHow{
		Flags: unix.O_RDONLY | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
	})
	if errors.Is(err, unix.ENOENT) {
		return "", nil
	}
	text := make([]byte, 1024)
	n := 0
	if err == nil {
		defer unix.Close(fd)
		n, err = readRegular(fd, text)
	}
	if err != nil {
		return "", errors.New("cannot read which profile is chosen in " + home + "/active_profile: " + err.Error() + "; name a profile with -p")
	}
	return normalize(string(text[:n])), nil
}

// readRegular reads the beginning of a regular file into text, and returns the number of bytes. Any other file is an error.
func readRegular(fd int, text []byte) (n int, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return 0, errors.New("it is no regular file")
	}
	return unix.Read(fd, text)
}

// profileOf returns the profile that the words after the agent's name select by -p or --profile, or "". The spelling is the
// agent's: lower case, without blanks around it. Words after "--" aren't flags.
func profileOf(words []string) string {
	for i, word := range words {
		if word == "--" {
			return ""
		}
		if name, joined := strings.CutPrefix(word, "--profile="); joined {
			return normalize(name)
		}
		if (word == "-p" || word == "--profile") && i+1 < len(words) {
			return normalize(words[i+1])
		}
	}
	return ""
}

func normalize(name string) string { return strings.ToLower(strings.TrimSpace(name)) }

// execIsolated replaces the process by hinit shell, which runs the command with the user and the isolation of the profile. It
// returns only after a failure.
func (o *options) execIsolated(profile string, argv, env []string) error {
	// hinit shell also takes names of services, patterns and groups. A name with the prefix gateway- can only mean a gateway.
	command := []string{"hinit", "shell", "gateway-" + profile, "--", o.target}
	if profileOf(argv[1:]) == "" { // the isolated agent can't read active_profile, so name the profile
		command = append(command, "-p", profile)
	}
	return unix.Exec(o.hinitPath, append(command, argv[1:]...), env)
}
