package host

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/fsutil"
	"hinit/kubernetes/internal/placement"
	"hinit/profiles/archive"
)

// The directories of a store, below the root of the volume.
const (
	storeDir = ".hinit-fleet"
	liveDir  = storeDir + "/live"  // Records of the live profiles that the fleet created, see [record].
	asideDir = storeDir + "/aside" // NAME.UID.ASSIGNMENT: data that is set aside for another host.
	// NAME.UID.NONCE: data received from another host. NAME.UID.NONCE.json is its receipt,
	// NAME.UID.record its record.
	incomingDir = storeDir + "/incoming"
	retainedDir = storeDir + "/retained" // NAME.UID.TIME: data to which no object refers.
	backupsDir  = storeDir + "/backups"  // Archives from which spec.recover can restore a profile.
	partDir     = storeDir + "/part"     // Incomplete data, see [partialPath]. Opening the store discards other files.
	trashDir    = storeDir + "/trash"    // Data to delete, see [Store.discard].
	profilesDir = "profiles"
)

// Store manages the data of profiles on a volume. A profile is live if it is in the directory from which hinit starts
// gateways. Each change is a rename, so a crash leaves the state before or after it. Several goroutines may use a Store at a
// time for different profiles.
type Store struct {
	root           *os.Root
	discarded      chan struct{} // Holds an element if trashDir has new data.
	removeTime     time.Duration // Time after which emptyTrash continues with another tree.
	idleTimeout    time.Duration // Maximum time without data from another host.
	longerTimeouts sync.Map      // Timeouts (time.Duration) by UID that replace idleTimeout, see [Store.idleTimeoutOf].
}

const (
	defaultRemoveTime  = time.Minute      // Default of Store.removeTime.
	defaultIdleTimeout = stallTimeout / 2 // Default of Store.idleTimeout.
	// Lowest expected speed, in bytes per second, at which a host reads data that it has already sent.
	minReadRate = 10 << 20
)

// OpenStore opens the store of a volume and removes temporary data that a crash has left.
func OpenStore(home string) (*Store, error) {
	root, err := os.OpenRoot(home)
	if err != nil {
		return nil, fmt.Errorf("cannot open the volume: %w", err)
	}
	s := &Store{root: root, discarded: make(chan struct{}, 1), removeTime: defaultRemoveTime, idleTimeout: defaultIdleTimeout}
	for _, dir := range []string{storeDir, liveDir, asideDir, incomingDir, retainedDir, backupsDir, partDir} {
		if err := s.makeDir(dir); err != nil {
			return nil, fmt.Errorf("cannot open the volume: %w", err)
		}
	}
	_ = s.makeDir(trashDir) // Ignore the error: discard creates the directory too, and reports it.
	err = s.eachEntry(partDir, func(name string, _ bool) {
		if !strings.HasPrefix(name, archive.ImportPrefix) {
			// Ignore the error: leftovers only take space, and must not keep the host from working.
			_ = s.discard(path.Join(partDir, name))
		}
	})
	return s, err
}

// Home returns the directory of a live profile, below the root of the volume.
func (s *Store) Home(name string) string { return path.Join(profilesDir, name) }

// exists reports whether a path exists. It returns true if it can't find out.
func (s *Store) exists(name string) bool {
	_, err := s.root.Lstat(name)
	return !errors.Is(err, fs.ErrNotExist)
}

// maxRecordBytes limits the size of the files that are read as records, because agents can replace them by larger ones.
const maxRecordBytes = 4 << 20

// openFile opens a regular file for reading, and returns its size. It follows symbolic links inside the volume. It never
// blocks: it returns an error for a named pipe.
func (s *Store) openFile(name string) (f *os.File, size int64, err error) {
	if f, err = s.root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0); err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("cannot read %s: it is no regular file", name)
	}
	if err != nil {
		return nil, 0, errors.Join(err, f.Close())
	}
	return f, info.Size(), nil
}

// readFile returns the content of a regular file. It returns an error if the file is larger than most bytes.
func (s *Store) readFile(name string, most int64) ([]byte, error) {
	f, size, err := s.openFile(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var text []byte
	if size <= most { // Don't read a larger file at all, because memory is short.
		text, err = io.ReadAll(io.LimitReader(f, most+1))
	}
	if err == nil && max(size, int64(len(text))) > most {
		err = fmt.Errorf("cannot read %s: it has more than %d bytes", name, most)
	}
	return text, err
}

// openDir opens a directory. It never blocks: it returns an error for any other kind of file.
func (s *Store) openDir(name string) (*os.File, error) {
	return s.root.OpenFile(name, os.O_RDONLY|unix.O_DIRECTORY, 0)
}

// eachEntry calls found for each entry of a directory, in any order. It reads only a few names at a time, because agents may
// have made any number of files.
func (s *Store) eachEntry(dir string, found func(name string, isDir bool)) error {
	d, err := s.openDir(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return fsutil.EachEntry(int(d.Fd()), func(name string, kind fs.FileMode) bool {
		found(name, kind.IsDir())
		return true
	})
}

// replace writes a file atomically: it writes a temporary file in the same directory and renames it. Only the owner may read
// the file. replace doesn't open the old file, which an agent may have replaced by a pipe. If the name of the temporary file
// belongs to a directory that an agent has made, replace uses another name, because removing the directory could take hours.
func (s *Store) replace(name string, text []byte) error {
	temp := path.Join(path.Dir(name), ".hinit-new."+path.Base(name))
	if err := s.root.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		temp += "." + rand.Text()
	}
	f, err := s.root.OpenFile(temp, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Chmod(0o600), f.Sync(), f.Close()); err == nil {
		err = s.rename(temp, name)
	}
	if err != nil {
		_ = s.root.Remove(temp) // Ignore the error: after a successful rename, no temporary file exists.
		return err
	}
	return nil
}

// rename renames a file, and syncs both directories to the disk before it returns.
func (s *Store) rename(from, to string) error {
	if err := s.move(from, to); err != nil {
		return err
	}
	return errors.Join(s.sync(path.Dir(from)), s.sync(path.Dir(to)))
}

// move renames a file or directory. The kernel lets a directory move to another parent only if the directory is writable,
// because its entry ".." changes. If an agent has taken this permission from its home, move restores it.
func (s *Store) move(from, to string) error {
	err := s.root.Rename(from, to)
	if errors.Is(err, fs.ErrPermission) {
		err = errors.Join(s.root.Chmod(from, 0o700), s.root.Rename(from, to))
	}
	return err
}

func (s *Store) sync(dir string) error {
	d, err := s.openDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Inspect returns the data that the volume has for a profile. name is the name of the profile, and uid the UID of its object.
// The parameters me and o are as in [placement.Live]. Inspect fills only the fields Live, Aside and Incoming.
func (s *Store) Inspect(name, uid, me string, o *placement.Object) (l placement.LocalState, err error) {
	for _, e := range s.entries(asideDir, name, uid) {
		n, err := strconv.ParseInt(e, 10, 64)
		if err == nil {
			l.Aside = max(l.Aside, n)
		}
	}
	l.Live = placement.Live(me, uid, o, l.Aside, func() bool {
		r, bad := s.readRecord(name)
		err = bad
		return bad == nil && r != nil && r.UID == uid
	}) && s.exists(s.Home(name))
	if err != nil {
		return l, fmt.Errorf("cannot read the record of profile %q: %w", name, err)
	}
	for _, e := range s.entries(incomingDir, name, uid) {
		if s.exists(incomingPath(name, uid, e) + ".json") {
			l.Incoming = e
		}
	}
	if l.Incoming == "" && s.exists(partialPath(name, uid)) {
		l.Incoming = partialNonce
	}
	return l, nil
}

// partialNonce stands in place of the nonce in the name of incomplete data.
const partialNonce = "partly"

// partialPath returns the directory of an object's incomplete data, which the next fetch completes.
func partialPath(name, uid string) string {
	return path.Join(partDir, archive.ImportPrefix+name+"."+uid)
}

// entries lists the subdirectories of dir whose names begin with NAME.UID., and returns the rest of each name.
func (s *Store) entries(dir, name, uid string) (out []string) {
	_ = s.eachEntry(dir, func(found string, isDir bool) { // Ignore the error: the list is empty if dir can't be read.
		if rest, ok := strings.CutPrefix(found, name+"."+uid+"."); ok && isDir {
			out = append(out, rest)
		}
	})
	return out
}

// eachMoving calls found with the profile and the UID of all data that is on its way to or from another host, and so isn't
// live.
func (s *Store) eachMoving(found func(name, uid string)) error {
	var errs []error
	for _, dir := range []string{asideDir, incomingDir, partDir} {
		prefix, parts := "", 3 // Names have the form NAME.UID.ASSIGNMENT or NAME.UID.NONCE.
		if dir == partDir {
			prefix, parts = archive.ImportPrefix, 2 // Names have the form of [partialPath].
		}
		errs = append(errs, s.eachEntry(dir, func(name string, isDir bool) {
			rest, is := strings.CutPrefix(name, prefix)
			if words := strings.Split(rest, "."); is && len(words) == parts && (isDir || dir == partDir) {
				found(words[0], words[1])
			}
		}))
	}
	return errors.Join(errs...)
}

func asidePath(name, uid string, assignment int64) string {
	return path.Join(asideDir, fmt.Sprintf("%s.%s.%d", name, uid, assignment))
}

func incomingPath(name, uid, nonce string) string {
	return path.Join(incomingDir, fmt.Sprintf("%s.%s.%s", name, uid, nonce))
}

func reservedPath(name, uid string) string { return path.Join(incomingDir, name+"."+uid+".record") }

// Reserve writes the record of received data before its host becomes the owner. Later, Install needs no room for a record,
// even on a full volume. files are the files that the fleet has written into the data.
func (s *Store) Reserve(name, uid string, files []string) error {
	if err := s.CheckFree(name, uid); err != nil {
		return err
	}
	text, err := json.Marshal(record{uid, files})
	if err == nil {
		err = s.replace(reservedPath(name, uid), text)
	}
	return wrapError("reserve the record of", name, err)
}

// SetAside moves the data of a profile to a place where hinit does not find it. The record stays, so that TakeBack needs no
// room for a record on a full volume. If a process makes the home again after the profile was given away, the host recognises
// that home by the record and retires it.
func (s *Store) SetAside(name, uid string, assignment int64) error {
	return wrapError("set aside the data of", name, s.rename(s.Home(name), asidePath(name, uid, assignment)))
}

// TakeBack undoes SetAside, so that hinit can start the gateway from the data again.
func (s *Store) TakeBack(name, uid string, assignment int64) error {
	return wrapError("take back the data of", name, s.makeLive(name, uid, asidePath(name, uid, assignment)))
}

// Install makes received data the live profile.
func (s *Store) Install(name, uid, nonce string) error {
	err := s.CheckFree(name, uid)
	if err == nil {
		err = s.makeLive(name, uid, incomingPath(name, uid, nonce))
	}
	if err == nil { // After an error, keep the received data, which is the only copy.
		err = errors.Join(s.discard(incomingPath(name, uid, nonce)+".json"), s.DropIncoming(name, uid))
	}
	return wrapError("install", name, err)
}

// makeLive makes the directory from the home of a profile. If another home is in its place, which a process has made
// meanwhile, makeLive retains that home.
func (s *Store) makeLive(name, uid, from string) (err error) {
	if s.exists(from) && s.exists(s.Home(name)) {
		err = s.retain(name, uid, s.Home(name))
	}
	if r, bad := s.storedRecord(name); err == nil && (bad != nil || r == nil || r.UID != uid) && s.rename(reservedPath(name, uid), path.Join(liveDir, name)) != nil {
		err = s.Claim(name, uid)
	}
	if err == nil {
		err = s.root.MkdirAll(profilesDir, 0o755)
	}
	if err == nil {
		err = s.rename(from, s.Home(name))
	}
	return err
}

// Drop handles the data that was set aside for another host. It deletes only the copy of the assignment before confirmed,
// because the next owner has confirmed that it has this data. It retains every other copy, which may be the only one.
func (s *Store) Drop(name, uid string, confirmed int64) (err error) {
	for _, e := range s.entries(asideDir, name, uid) {
		from := path.Join(asideDir, name+"."+uid+"."+e)
		if from == asidePath(name, uid, confirmed-1) {
			err = errors.Join(err, s.discard(from))
		} else {
			err = errors.Join(err, s.retain(name, uid, from))
		}
	}
	return wrapError("drop the set-aside data of", name, err)
}

// DropIncoming deletes received data of an object that was not installed. The data may be incomplete.
func (s *Store) DropIncoming(name, uid string) error {
	s.longerTimeouts.Delete(uid)
	return errors.Join(s.discardAll(incomingDir, name, uid), s.discard(partialPath(name, uid)), s.discard(reservedPath(name, uid)))
}

// discardAll discards all data of an object in a directory, with its receipts.
func (s *Store) discardAll(dir, name, uid string) error {
	var err error
	for _, e := range s.entries(dir, name, uid) {
		at := path.Join(dir, name+"."+uid+"."+e)
		err = errors.Join(err, s.discard(at+".json"), s.discard(at))
	}
	return wrapError("remove data of", name, err)
}

// retain moves data of an object into the directory for data to which no object refers, where a person can find it.
func (s *Store) retain(name, uid, from string) error {
	for at := time.Now().Unix(); ; at++ {
		if err := s.rename(from, path.Join(retainedDir, fmt.Sprintf("%s.%s.%d", name, uid, at))); !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
}

// RetireHome retains the live data of an object, so that hinit does not have the profile any more.
func (s *Store) RetireHome(name, uid string) error {
	err := s.retain(name, uid, s.Home(name))
	if err == nil {
		err = s.removeRecord(name)
	}
	return wrapError("retire", name, err)
}

// Retire retains all complete data of an object. live is true if the live data belongs to this object.
func (s *Store) Retire(name, uid string, live bool) (err error) {
	if live {
		err = s.RetireHome(name, uid)
	}
	// Retain it too, because the previous host may have deleted its copy.
	for _, nonce := range s.entries(incomingDir, name, uid) {
		err = errors.Join(err, s.retain(name, uid, incomingPath(name, uid, nonce)), s.discard(incomingPath(name, uid, nonce)+".json"))
	}
	return errors.Join(err, s.Drop(name, uid, 0), s.DropIncoming(name, uid)) // Assignment 0: no host has confirmed anything.
}

// Delete deletes all data of an object. live is true if the live data belongs to this object.
func (s *Store) Delete(name, uid string, live bool) (err error) {
	if live { // Delete live data first: after a crash, hinit must not find a profile without its record.
		if err = errors.Join(s.discard(s.Home(name)), s.sync(profilesDir)); err == nil {
			err = s.removeRecord(name)
		}
	}
	return wrapError("delete", name, errors.Join(err, s.discardAll(asideDir, name, uid), s.DropIncoming(name, uid)))
}

func wrapError(verb, name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("cannot %s profile %q: %w", verb, name, err)
}
