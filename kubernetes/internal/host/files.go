package host

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"hinit/kubernetes/api/v1alpha1"
)

const (
	// sourceCacheTime is the age at which the cached content of a ConfigMap or Secret is read again.
	sourceCacheTime = time.Minute
	// errorCacheTime is how long after an error a read is tried again. It is short, because the controller may grant access soon.
	errorCacheTime = 5 * time.Second
	// maxFileBytes limits the files of one profile, and maxCachedBytes the contents in the cache. They are needed because the
	// memory of the host's container is small, and users may name any number of large ConfigMaps.
	maxFileBytes   = 16 << 20
	maxCachedBytes = 32 << 20
)

// sources reads ConfigMaps and Secrets, and caches their contents and read errors. The cache saves requests, because many
// profiles may use the same ones.
type sources struct {
	api       client.Reader
	namespace string

	mu          sync.Mutex
	cache       map[string]source
	cachedBytes int // Total size of the cached contents, in bytes.
}

type source struct {
	data map[string][]byte
	err  error
	at   time.Time
}

// get returns the data of a ConfigMap or Secret (kind). It takes the data from the cache if they are recent enough.
func (s *sources) get(ctx context.Context, kind, name string) (map[string][]byte, error) {
	s.mu.Lock()
	one, known := s.cache[kind+"/"+name]
	s.mu.Unlock()
	if age := time.Since(one.at); known && (age < errorCacheTime || one.err == nil && age < sourceCacheTime) {
		return one.data, one.err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	one = source{data: map[string][]byte{}, at: time.Now()}
	key := client.ObjectKey{Namespace: s.namespace, Name: name}
	switch kind {
	case "ConfigMap":
		var c corev1.ConfigMap
		one.err = s.api.Get(ctx, key, &c)
		for k, v := range c.Data {
			one.data[k] = []byte(v)
		}
		maps.Copy(one.data, c.BinaryData)
	case "Secret":
		var c corev1.Secret
		one.err = s.api.Get(ctx, key, &c)
		maps.Copy(one.data, c.Data)
	}
	if one.err != nil {
		one.err = fmt.Errorf("cannot read %s %q: %w", kind, name, one.err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if old, there := s.cache[kind+"/"+name]; there {
		s.cachedBytes -= old.size()
	}
	s.cachedBytes += one.size()
	if s.cachedBytes > maxCachedBytes { // Drop the whole cache; files that are still used are read again.
		clear(s.cache)
		s.cachedBytes = one.size()
	}
	s.cache[kind+"/"+name] = one
	return one.data, one.err
}

// size estimates how many bytes of memory a source takes.
func (s source) size() int {
	n := 1 << 10
	for key, text := range s.data {
		n += len(key) + len(text)
	}
	return n
}

func (s *sources) key(ctx context.Context, kind, name, key string) ([]byte, error) {
	data, err := s.get(ctx, kind, name)
	if err != nil {
		return nil, err
	}
	text, there := data[key]
	if !there {
		return nil, fmt.Errorf("cannot read %s %q: it has no key %q", kind, name, key)
	}
	return text, nil
}

// wantedFiles returns the files for which the spec of a profile asks. It maps their paths below the profile's home to their
// contents.
func (s *sources) wantedFiles(ctx context.Context, p *v1alpha1.AgentProfileSpec) (map[string][]byte, error) {
	out := map[string][]byte{}
	var err error
	left := maxFileBytes // Bytes that are still allowed. If it is negative, nothing more is read.
	add := func(name string, text []byte, err2 error) {
		out[name], err = text, errors.Join(err, err2)
		left -= len(text)
	}
	put := func(name, kind, from, key string) {
		if left >= 0 {
			text, err2 := s.key(ctx, kind, from, key)
			add(name, text, err2)
		}
	}
	if p.Soul != nil {
		put("SOUL.md", "ConfigMap", p.Soul.ConfigMap, p.Soul.Key)
	}
	if p.Config != nil {
		put("config.yaml", "ConfigMap", p.Config.ConfigMap, p.Config.Key)
	}
	for _, f := range p.Files {
		if f.Secret != "" {
			put(f.Path, "Secret", f.Secret, f.Key)
		} else {
			put(f.Path, "ConfigMap", f.ConfigMap, f.Key)
		}
	}
	for _, k := range p.Skills {
		if left < 0 {
			break
		}
		data, err2 := s.get(ctx, "ConfigMap", k.ConfigMap)
		for name, text := range data {
			add(path.Join("skills", k.Name, name), text, nil)
		}
		err = errors.Join(err, err2)
	}
	if len(p.Env) > 0 && left >= 0 {
		env := map[string][]byte{}
		for _, e := range p.Env {
			data, err2 := s.get(ctx, "Secret", e.Secret)
			maps.Copy(env, data)
			err = errors.Join(err, err2)
		}
		text, err2 := dotenv(env)
		add(".env", text, err2)
	}
	if left < 0 {
		return nil, errTooLarge
	}
	return out, err
}

var errTooLarge = fmt.Errorf("cannot write the files of the profile: they have more than %d MiB; use fewer or smaller ConfigMaps and Secrets", maxFileBytes>>20)

var variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// dotenv formats environment variables as the text of a .env file.
func dotenv(env map[string][]byte) ([]byte, error) {
	var b bytes.Buffer
	b.WriteString("# From the Secrets that the AgentProfile names.\n")
	quote := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`, "$", `\$`)
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if !variableName.MatchString(name) || bytes.IndexByte(env[name], 0) >= 0 {
			return nil, fmt.Errorf("cannot write .env: %q is no variable, or its value has a zero byte; give the key another name", name)
		}
		fmt.Fprintf(&b, "%s=\"%s\"\n", name, quote.Replace(string(env[name])))
	}
	return b.Bytes(), nil
}

// checksum returns a short checksum of the names and contents of files.
func checksum(files map[string][]byte) string {
	h := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		fmt.Fprintf(h, "%q %d\n", name, len(files[name]))
		h.Write(files[name])
	}
	return hex.EncodeToString(h.Sum(nil))[:16]
}

// apply changes the files of a profile on the volume to the given contents. It writes each file that differs. It removes each
// file that an earlier call wrote and that is no longer in files. uid is the UID of the profile's object. changed is true if
// apply has written or removed a file.
func (s *Store) apply(name, uid string, files map[string][]byte) (changed bool, err error) {
	r, err := s.readRecord(name)
	forged := err != nil || r == nil || r.UID != uid // Whether an agent has changed or removed the record.
	if forged {
		r = &record{UID: uid}
	}
	names := slices.Sorted(maps.Keys(files))
	old := r.Files
	if forged || !slices.Equal(old, names) { // Record the names first, so that a crash leaves no unrecorded file.
		r.Files = slices.Compact(slices.Sorted(slices.Values(slices.Concat(old, names))))
		if err := s.writeRecord(name, r); err != nil {
			return false, err
		}
	}
	err = s.openHome(s.Home(name), func(home *os.Root) error {
		inside := &Store{root: home}
		for _, file := range names {
			has, err := inside.readFile(file, int64(len(files[file])))
			if err == nil && bytes.Equal(has, files[file]) {
				continue
			}
			changed = true
			if err := errors.Join(home.MkdirAll(path.Dir(file), 0o755), inside.replace(file, files[file])); err != nil {
				return fmt.Errorf("cannot write %q of profile %q: %w", file, name, err)
			}
		}
		for _, file := range old {
			// Keep SOUL.md, without which hinit does not recognise the profile.
			if _, stays := files[file]; stays || file == "SOUL.md" {
				continue
			}
			changed = true
			if err := home.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("cannot remove %q of profile %q: %w", file, name, err)
			}
		}
		return nil
	})
	if err == nil && !slices.Equal(r.Files, names) {
		r.Files = names
		err = s.writeRecord(name, r)
	}
	return changed, err
}

// writeFiles writes the files of a profile. applied is the checksum of the files. changed is true if a file on the volume has
// changed.
func (h *host) writeFiles(ctx context.Context, p *v1alpha1.AgentProfile) (applied string, changed bool, err error) {
	files, err := h.sources.wantedFiles(ctx, &p.Spec)
	if err != nil {
		return "", false, err
	}
	changed, err = h.store.apply(p.Name, string(p.UID), files)
	return checksum(files), changed, err
}
