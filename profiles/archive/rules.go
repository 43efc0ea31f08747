package archive

import (
	"io/fs"
	"path"
	"slices"
	"strings"
	"unicode"

	"hinit/internal/dotenv"
)

// stagingDir is the directory in a home for snapshots of exports. filesDir is the directory in a snapshot for the copied files.
const (
	stagingDir = ".hinit-export"
	filesDir   = "files"
)

// reasonIdentity is the reason that the head gives for what a clone leaves out.
const reasonIdentity = "identity that two profiles must not share"

// runtimeState lists files that are true only for a gateway on one host: PIDs, locks, the desired state, reserved disk space.
// They are never exported.
var runtimeState = []string{
	"gateway.pid", "gateway.lock", "gateway_state.json", "processes.json", "auth.lock", ".gateway-planned-stop.json", ".gateway-takeover.json",
	".clean_shutdown", ".restart_pending.json", ".hinit-reserve", ".hinit-profile",
}

// Names that mean that a file or directory holds secrets: whole names, extensions, directories. A file is also secret if the last
// word of its name is in secretWords and its extension is in secretKinds. exampleFiles lists exceptions.
var (
	secretWords    = strings.Fields("auth oauth token tokens key keys apikey secret secrets password passwords credential credentials creds cookie cookies")
	secretKinds    = []string{"", ".json", ".txt", ".yaml", ".yml", ".toml"}
	secretNames    = strings.Fields(".netrc .git-credentials .pgpass .npmrc .pypirc id_rsa id_ecdsa id_ed25519")
	secretSuffixes = strings.Fields(".pem .key .p12 .pfx .kdbx")
	secretDirs     = strings.Fields(".ssh .gnupg .aws .azure .kube .docker .gcloud .password-store whatsapp")
	exampleFiles   = strings.Fields(".env.example .env.sample .env.template")
	// identityDirs are directories at the top of a home with the identity of the profile on chat platforms. A clone leaves them
	// out.
	identityDirs = []string{"platforms", "pairing"}
)

// HasSecretName reports whether the file or directory rel has a name that is usual for secrets, such as .env, auth.json,
// client_secret.json or .ssh. It does not examine the content.
func HasSecretName(rel string, kind fs.FileMode) bool {
	base := strings.ToLower(path.Base(rel))
	if kind.IsDir() {
		return slices.Contains(secretDirs, base)
	}
	ext := path.Ext(base)
	words := strings.FieldsFunc(strings.TrimSuffix(base, ext), func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) })
	return base == ".env" || strings.HasPrefix(base, ".env.") && !slices.Contains(exampleFiles, base) ||
		slices.Contains(secretNames, base) || slices.Contains(secretSuffixes, ext) ||
		slices.Contains(secretKinds, ext) && len(words) > 0 && slices.Contains(secretWords, words[len(words)-1])
}

// whyLeftOut decides whether the archive omits the file rel. why is the reason for the head, or "" if the file is included. target
// is the target of a symbolic link. skip is true for a file that belongs to another profile or to none; the head does not mention
// such a file.
func (x *Export) whyLeftOut(rel, target string, info fs.FileInfo) (why string, skip bool) {
	kind := info.Mode().Type()
	secret := HasSecretName(rel, kind)
	switch {
	case rel == stagingDir || slices.Contains(x.SkipPaths, rel):
		return "", true
	case !fs.ValidPath(rel):
		return "name that is not UTF-8", false
	case slices.Contains(runtimeState, rel), strings.HasPrefix(rel, ".hinit-"): // hinit's own files contain commands and measurements that are valid only in this container.
		return "state of the running gateway", false
	case kind != 0 && kind != fs.ModeDir && kind != fs.ModeSymlink:
		return "neither a file nor a directory nor a link", false
	case x.ForClone && (secret && rel != ".env" || slices.Contains(identityDirs, rel)):
		return reasonIdentity, false
	case secret && !x.IncludeSecrets:
		return "secret", false
	case kind == fs.ModeSymlink && !x.AllowOutsideLinks && !staysInProfile(rel, target):
		return "link that leads out of the profile", false
	case strings.Count(rel, "/") > maxDepth:
		return "too many directories above it", false
	}
	return "", false
}

// withoutIdentity returns the text of a .env file without the variables that two running gateways must not share (see
// [profiles.Store.ExclusiveValues]). It also returns the names of these variables.
func withoutIdentity(text string) (kept string, names []string) {
	var b strings.Builder // An agent decides how many lines exist, so keep no list of them.
	end := 0              // End of the last removed variable.
	for _, v := range dotenv.Parse(text) {
		if strings.HasSuffix(v.Name, "_BOT_TOKEN") || strings.HasSuffix(v.Name, "_APP_TOKEN") || v.Name == "API_SERVER_PORT" {
			b.WriteString(text[end:v.StartOffset])
			names, end = append(names, v.Name), v.EndOffset
		}
	}
	b.WriteString(text[end:])
	return b.String(), names
}
